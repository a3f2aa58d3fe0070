"""`pocketserver cache …`: what is kept of conversations on disk. Works on files, also while a server runs."""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import platformdirs
import typer

from pocketserver.engines.llama import cache_files

app = typer.Typer(
    help="Conversations kept on disk, so that they are answered at once after a restart.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Home = Annotated[Path | None, typer.Option(help="The folder for keys, models and caches.", envvar="POCKETSERVER_HOME")]

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept for one model, as it was run: another context size or llama.cpp build makes another row."""

    model: str
    version: str
    conversations: int
    size_bytes: int
    last_used: int


@app.command()
def show(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False, home: Home = None
) -> None:
    """List for each model how many conversations are kept, their size, and when one was last used."""
    kept = _kept(_root(home))
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in kept]))
        return
    if not kept:
        typer.echo("No conversations are kept on disk.")
        return
    for cells in [("MODEL", "CONVERSATIONS", "MIB", "LAST USED"), *map(_row, kept)]:
        typer.echo("{:<40}  {:>13}  {:>9}  {}".format(*cells))


@app.command()
def clear(home: Home = None) -> None:
    """Remove every kept conversation. The ones in a running server's memory stay until it ends."""
    count, size_bytes = cache_files.clear(_root(home))
    typer.echo(f"{count} conversations removed, {size_bytes / _MIB:,.1f} MiB.", err=True)


def _root(home: Path | None) -> Path:
    folder = home or platformdirs.user_data_path("pocketserver")
    return folder / "llama" / cache_files.FOLDER


def _kept(root: Path) -> list[Kept]:
    rows = []
    for folder in cache_files.versions(root):
        if found := cache_files.states(folder):
            size_bytes = sum(file.size_bytes for file in found)
            model = cache_files.model_of(folder) or "(unknown)"
            rows.append(Kept(model, folder.name, len(found), size_bytes, int(found[-1].used)))
    return rows


def _row(kept: Kept) -> tuple[str, str, str, str]:
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(kept.last_used))
    return kept.model, str(kept.conversations), f"{kept.size_bytes / _MIB:,.1f}", used
