"""`pocketserver key …`: show the main key, make, list and revoke named ones. A running server follows at once."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import platformdirs
import typer

from pocketserver.gate import key_file
from pocketserver.gate.keys import MAIN, SCOPES, KeyInfo, KeyStore

app = typer.Typer(
    help="API keys: show the main one, make named ones, list and revoke them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Home = Annotated[Path | None, typer.Option(help="The folder for keys, models and caches.", envvar="POCKETSERVER_HOME")]


@app.command()
def show(home: Home = None) -> None:
    """Print the main key alone; it is made now if there is none yet.

    A server that was started with POCKETSERVER_API_KEY has that key instead.
    """
    typer.echo(_store(home).main_key())


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="What or whom the key is for.")],
    scope: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(SCOPES)}; may be repeated.")] = None,
    home: Home = None,
) -> None:
    """Make a key and print it alone. It cannot be shown again, only revoked."""
    scopes = scope or ["chat"]
    key = _store(home).new(name, scopes)
    typer.echo(f"The key '{name}' ({', '.join(scopes)}) is shown this once:", err=True)
    typer.echo(key)


@app.command("list")
def list_keys(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False, home: Home = None
) -> None:
    """List the keys: name, scopes, the last four characters, and when each was made and last used."""
    keys = _store(home).list()
    if as_json:
        typer.echo(json.dumps([asdict(key) for key in keys]))
        return
    if not keys:
        typer.echo("There are no keys yet. The main key is made at the first start, or by `pocketserver key show`.")
        return
    for row in [("NAME", "SCOPES", "ENDS IN", "MADE", "LAST USED"), *map(_row, keys)]:
        typer.echo("{:<32}  {:<20}  {:<7}  {:<16}  {}".format(*row).rstrip())


@app.command()
def revoke(name: Annotated[str, typer.Argument(help="The name that `list` shows.")], home: Home = None) -> None:
    """Take a key away: its running streams end, and it is refused from now on."""
    _store(home).revoke(name)
    rest = " A new main key is in its place: `pocketserver key show`." if name == MAIN else ""
    typer.echo(f"The key '{name}' is revoked.{rest}", err=True)


def _store(home: Path | None) -> KeyStore:
    folder = home or platformdirs.user_data_path("pocketserver")
    warning = key_file.exposure(folder)
    if warning is not None:
        typer.echo(warning, err=True)
    return KeyStore(folder)


def _row(key: KeyInfo) -> tuple[str, str, str, str, str]:
    return key.name, ",".join(key.scopes), key.last4, _day(key.created), _day(key.last_used)


def _day(seconds: int | None) -> str:
    return "never" if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
