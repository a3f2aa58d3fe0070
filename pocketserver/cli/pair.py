"""`pocketserver pair`: a QR code and six digits that give one device a key of its own."""

import os
import sys
import time
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from pocketserver.cli.servers import Json, Pid, Port, ask, chosen_server
from pocketserver.errors import StartupError
from pocketserver.lan import qr
from pocketserver.listening import is_loopback
from pocketserver.run_file import RunningServer

_POLL_SECONDS = 0.5
_REPLACED = "Another code was made meanwhile, so this one is void. Run `pocketserver pair` again."
_ENDS = {
    "expired": "The code is older than two minutes. Run `pocketserver pair` again for a new one.",
    "void": "Somebody tried wrong codes five times, so this one is void. Run `pocketserver pair` again.",
}


def pair(
    style: Annotated[qr.TerminalStyle | None, typer.Option(help="How the QR code is drawn in the terminal.")] = None,
    wait: Annotated[
        bool | None, typer.Option("--wait/--no-wait", help="Wait until a device has paired; usual on a terminal.")
    ] = None,
    pid: Pid = None,
    port: Port = None,
    as_json: Json = False,
) -> None:
    """Show a code that gives one device a key of its own, within two minutes.

    The device scans it with its camera, or opens the address and types the six digits.
    """
    server = chosen_server(pid, port)
    offer = ask(server, "POST", "/page/pairing")
    number = offer.pop("number")
    if as_json:
        import json

        typer.echo(json.dumps(offer))
        return
    _show(offer, style)
    if wait if wait is not None else sys.stdout.isatty():
        _wait(server, number)


def _show(offer: dict[str, Any], style: qr.TerminalStyle | None) -> None:
    chosen = qr.style_for(style, is_terminal=sys.stdout.isatty(), no_color=bool(os.environ.get("NO_COLOR")))
    if chosen is not qr.TerminalStyle.NONE:
        typer.echo(qr.terminal_text(offer["url"], chosen), color=True)
    typer.echo(offer["url"])
    typer.echo(f"Code: {offer['code']}")
    typer.echo(f"Good for {offer['seconds']} seconds and one device.", err=True)
    if is_loopback(urlsplit(offer["url"]).hostname or ""):
        typer.echo("This server listens on this machine only; a phone cannot reach it (see --host).", err=True)


def _wait(server: RunningServer, number: int) -> None:
    """Until this code is used. Raises StartupError when it ends otherwise; Ctrl-C leaves it good."""
    while True:
        time.sleep(_POLL_SECONDS)
        shown = ask(server, "GET", "/page/pairing")["pairing"] or {}
        if shown.get("number") != number:
            raise StartupError(_REPLACED)
        if shown.get("state") == "used" and shown.get("name"):
            typer.echo(
                f"Paired: the key '{shown['name']}'. Take it back with `pocketserver key revoke {shown['name']}`."
            )
            return
        if shown.get("state") in _ENDS:
            raise StartupError(_ENDS[shown["state"]])
