"""`pocketserver qr`: a running server's address as a QR code, in the terminal or as a picture."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from pocketserver import settings
from pocketserver.cli.servers import Pid, Port, ask, chosen_server
from pocketserver.errors import StartupError
from pocketserver.gate.keys import KeyStore
from pocketserver.lan import qr as codes

_WARNING = "Anyone who sees this code can use the server."


def qr(
    *,
    png: Annotated[Path | None, typer.Option(help="Write a PNG picture to this file.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Write an SVG picture to this file.")] = None,
    pair: Annotated[bool, typer.Option("--pair", help="Put the key into the code.")] = False,
    style: Annotated[codes.TerminalStyle | None, typer.Option(help="How it is drawn in the terminal.")] = None,
    pid: Pid = None,
    port: Port = None,
) -> None:
    """Show a running server's address as a QR code; --pair puts the key into it."""
    status = ask(chosen_server(pid, port), "GET", "/status")
    base = str(status["base_url"])
    if pair and not status["asks_for_key"]:
        raise StartupError("This server has no key to pair with. Leave --pair out, or start it with --auth on.")
    show(codes.pairing_url(base, _main_key()) if pair else base, png=png, svg=svg, style=style)
    if pair:
        typer.echo(_WARNING, err=True)


def _main_key() -> str:
    """This run's key from the environment, else the one in the home folder."""
    current = settings.load(flags={}).settings
    return current.api_key or KeyStore(current.home_folder).main_key()


def show(text: str, *, png: Path | None, svg: Path | None, style: codes.TerminalStyle | None) -> None:
    """Write the pictures that were asked for; without any, draw on the terminal, or print the address alone."""
    for file, draw in ((png, codes.png), (svg, codes.svg)):
        if file is not None:
            _write(file, draw(text))
    if png is not None or svg is not None:
        return
    chosen = codes.style_for(style, is_terminal=sys.stdout.isatty(), no_color=bool(os.environ.get("NO_COLOR")))
    if chosen is not codes.TerminalStyle.NONE:
        typer.echo(codes.terminal_text(text, chosen), color=True)
    typer.echo(text)


def _write(file: Path, content: bytes) -> None:
    """Written whole and readable by its owner only: a pairing code is a key."""
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:  # noqa: PTH123
            out.write(content)
        fresh.replace(file)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise StartupError(f"Cannot write {file}: {error.strerror}.") from error
