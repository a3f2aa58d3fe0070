"""`pocketserver join`: arguments to settings, then a server whose model is in another machine's room."""

import sys
from getpass import getpass
from pathlib import Path
from typing import Annotated

import typer

from pocketserver import settings
from pocketserver.errors import UsageError

Option = typer.Option
_RENAMED = {"code": "room", "url": "room_url"}
"""Words of this command whose settings have longer names."""


def join(
    ctx: typer.Context,
    code: Annotated[str, typer.Argument(help="The room's code, such as 4TKG9P.")],
    url: Annotated[str | None, Option(help="The host's address, where mDNS does not find it.")] = None,
    host: Annotated[str | None, Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, Option(help="The port; 0 takes a free one.")] = None,
    mdns: Annotated[bool, Option("--mdns/--no-mdns", help="Look for the host on the network.")] = True,
    wait: Annotated[float | None, Option(help="Seconds to wait for the host before saying so.")] = None,
    name: Annotated[str | None, Option(help="What the host calls this guest.")] = None,
    auth: Annotated[str | None, Option(help="on asks this server's own clients for a key.")] = None,
    max_queue: Annotated[int | None, Option(help="Running and waiting requests at most.")] = None,
    settings_file: Annotated[Path | None, Option("--settings", help="A TOML file of settings.")] = None,
    log: Annotated[str | None, Option(help="text or json.")] = None,
    home: Annotated[str | None, Option(help="The folder for keys and state.")] = None,
    ready_json: Annotated[str | None, Option(help="Write one JSON line when ready: a file, or -.")] = None,
    exit_on_stdin_close: Annotated[bool | None, Option("--exit-on-stdin-close", help="End with the parent.")] = None,
) -> None:
    """Serve the model of a room on this machine, for OpenAI's and Anthropic's clients.

    The key of the room's host is taken from POCKETSERVER_ROOM_KEY, or asked for on a terminal.
    """
    given = {key: value for key, value in ctx.params.items() if value is not None and key != "settings_file"}
    flags: dict[str, object] = {_RENAMED.get(key, key): value for key, value in given.items()}
    flags |= {"profile": "pooled", "engine": "room"}
    effective = settings.load(flags=flags, file=settings_file)
    if not effective.settings.room_key:
        effective = settings.load(flags={**flags, "room_key": _asked()}, file=settings_file)

    from pocketserver.cli.serving import run  # everything heavy comes in here

    run(effective)


def _asked() -> str:
    """A key as typed, without showing it. Raises UsageError where nobody could type."""
    if sys.stdin.isatty():
        key = getpass("The key of the room's host: ").strip()
        if key:
            return key
    raise UsageError("The key of the room's host is missing. Set POCKETSERVER_ROOM_KEY.")
