"""`pocketserver models`: what is installed, what can be fetched, fetching and removing it."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Self

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TransferSpeedColumn
from rich.progress import Progress as Bar
from rich.table import Table

from pocketserver import settings
from pocketserver.errors import StartupError
from pocketserver.models.catalog import Catalog, CatalogEntry, load_catalog
from pocketserver.models.progress import Progress, Stage
from pocketserver.models.pull import pull as pull_model
from pocketserver.models.store import InstalledModel, ModelStore

app = typer.Typer(
    help="Models on this machine: list, fetch and remove them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Home = Annotated[str | None, typer.Option(help="The folder for keys, models and caches.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list. `state` is `installed`, `broken` (`problem` says why) or `available` (to be pulled)."""

    id: str
    state: str
    default: bool
    size_bytes: int
    quantization: str | None = None
    architecture: str | None = None
    parameters: int | None = None
    context_length: int | None = None
    license: str | None = None
    path: str | None = None
    problem: str | None = None


@app.command("list")
def list_models(*, home: Home = None, as_json: Json = False) -> None:
    """List installed models, and those that can be fetched."""
    store, catalog = _open(home)
    installed = store.list()
    names = {model.id for model in installed}
    rows = [_installed(model, catalog) for model in installed]
    rows += [_available(entry) for entry in catalog.entries.values() if entry.name not in names]
    if as_json:
        _print_json({"models": rows})
    else:
        _print_table(rows)


@app.command()
def pull(
    name: Annotated[str | None, typer.Argument(help="A name of the list; the default model when left out.")] = None,
    *,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Fetch a model of the catalogue; quick when it is there already."""
    store, catalog = _open(home)
    entry = catalog.default if name is None else catalog.find(name)
    if entry is None:
        raise StartupError(f"The catalogue has no model {name!a}. It has {', '.join(catalog.entries)}.")
    path = asyncio.run(_pull(entry, store))
    if as_json:
        _print_json({"id": entry.name, "path": str(path), "size_bytes": entry.size_bytes})
    else:
        print(f"{entry.name} is in {path}", file=sys.stderr)


@app.command()
def rm(name: Annotated[str, typer.Argument(help="The name of an installed model.")], *, home: Home = None) -> None:
    """Remove an installed model from the disk."""
    store, _ = _open(home)
    model = store.remove(name)
    print(f"Removed {model.id}, {_megabytes(model.size_bytes)}.", file=sys.stderr)


def _open(home: str | None) -> tuple[ModelStore, Catalog]:
    folder = settings.load(flags={} if home is None else {"home": home}).settings.home_folder
    return ModelStore(folder / "models"), load_catalog(folder / "catalog.toml")


async def _pull(entry: CatalogEntry, store: ModelStore) -> Path:
    with PullBar() as bar:
        return await pull_model(entry, store, bar.show)


class PullBar:
    """A progress bar on standard error; nothing when that is no terminal."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._bar = Bar(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task: TaskID | None = None
        self._stage: Stage | None = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, progress: Progress) -> None:
        if progress.stage is not self._stage:
            self._begin(progress.stage)
        assert self._task is not None
        self._bar.update(self._task, completed=progress.done_bytes, total=progress.total_bytes or None)

    def _begin(self, stage: Stage) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(_WORDS[stage])
        self._stage = stage


_WORDS = {
    Stage.WAITING: "Waiting for another pull",
    Stage.DOWNLOADING: "Downloading",
    Stage.UNPACKING: "Unpacking",
    Stage.DONE: "Done",
}


def _installed(model: InstalledModel, catalog: Catalog) -> Row:
    entry, known, info = catalog.find(model.id), model.metadata, model.info()
    return Row(
        id=model.id,
        state="installed" if known else "broken",
        default=entry is catalog.default,
        size_bytes=model.size_bytes,
        quantization=info.quantization,
        architecture=info.architecture,
        parameters=info.parameters,
        context_length=info.context_size,
        license=entry.license if entry else None,
        path=str(model.path),
        problem=model.problem,
    )


def _available(entry: CatalogEntry) -> Row:
    return Row(
        id=entry.name,
        state="available",
        default=entry.default,
        size_bytes=entry.size_bytes,
        license=entry.license or None,
    )


def _print_table(rows: list[Row]) -> None:
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=200)  # a file or pipe has no width to fit into
    table = Table(box=None, pad_edge=False)
    for title in ("NAME", "STATE", "SIZE", "TYPE", "PARAMETERS", "CONTEXT"):
        table.add_column(title, overflow="fold", justify="left" if title in {"NAME", "STATE", "TYPE"} else "right")
    for row in rows:
        table.add_row(
            row.id + (" (default)" if row.default else ""),
            row.state,
            _megabytes(row.size_bytes),
            row.quantization or "",
            f"{row.parameters / 1e6:,.0f} M" if row.parameters else "",
            f"{row.context_length:,}" if row.context_length else "",
        )
    console.print(table)
    for row in rows:
        if row.problem:
            console.print(f"\n{row.problem}", soft_wrap=True)


def _print_json(document: object) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"
