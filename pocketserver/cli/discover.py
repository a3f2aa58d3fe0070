"""`pocketserver discover`: the servers that announce themselves on the local network."""

import asyncio
import contextlib
import json
import time
from typing import Annotated

import typer

from pocketserver.errors import StartupError
from pocketserver.lan.address import candidates, choose, on_link_networks
from pocketserver.lan.browse import Browser, Heard, browsing, check_health
from pocketserver.lan.names import printable
from pocketserver.lan.responder import Link, links_of

_WIDTH = 32


def discover(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    seconds: Annotated[
        float, typer.Option(min=0.5, max=3600, help="How long to listen, or how often to ask again.")
    ] = 3.0,
    follow: Annotated[bool, typer.Option("--follow", help="Go on, and print what comes, changes and goes.")] = False,
) -> None:
    """List the servers that other devices would find here, and whether they answer."""
    links = _links()
    with contextlib.suppress(KeyboardInterrupt):
        try:
            asyncio.run(_follow(links, seconds, as_json=as_json) if follow else _list(links, seconds, as_json=as_json))
        except OSError as error:
            raise StartupError(f"mDNS cannot be heard: {error}. Another program may hold port 5353 alone.") from error


async def _list(links: tuple[Link, ...], seconds: float, *, as_json: bool) -> None:
    async with browsing(links) as browser:
        await asyncio.sleep(seconds)
        heard = await _heard(browser)
    if as_json:
        typer.echo(json.dumps([as_document(server) for server in heard]))
    elif not heard:
        typer.echo(
            "No server was heard. Are both devices on the same network? A guest Wi-Fi keeps devices apart.", err=True
        )
    for server in heard if not as_json else []:
        typer.echo(as_line(server))


async def _follow(links: tuple[Link, ...], seconds: float, *, as_json: bool) -> None:
    """Print each difference to what was printed before, until interrupted; ask who answers every few seconds."""
    shown: dict[tuple[str, str, int], Heard] = {}
    async with browsing(links) as browser:
        while True:
            now = {(server.name, server.host, server.port): server for server in await _heard(browser)}
            for event, server in differences(shown, now):
                typer.echo(_event_line(event, server, as_json=as_json))
            shown = now
            await _change(browser, seconds)


def differences(
    before: dict[tuple[str, str, int], Heard], now: dict[tuple[str, str, int], Heard]
) -> list[tuple[str, Heard]]:
    """What was removed, added and changed between two looks."""
    removed = [("removed", server) for key, server in before.items() if key not in now]
    added = [("added", server) for key, server in now.items() if key not in before]
    changed = [("changed", server) for key, server in now.items() if key in before and before[key] != server]
    return removed + added + changed


def as_document(server: Heard) -> dict[str, object]:
    """One server for programs, every text exactly as it was heard."""
    return {
        "name": server.name,
        "base_url": server.base_url,
        "host": server.host,
        "port": server.port,
        "addresses": list(server.addresses),
        "types": [kind.removesuffix(".local.") for kind in server.types],
        "answers": bool(server.answers),
        "txt": server.txt,
    }


def as_line(server: Heard) -> str:
    """One server for people; nothing in it can act upon the terminal."""
    words = [server.base_url or "(no address)", f"{server.host}:{server.port}" if server.host else ""]
    words += [f"{key}={server.txt[key]}" for key in ("model", "auth", "state") if server.txt.get(key)]
    if not server.answers:
        words.append("(does not answer)")
    return printable(f"{server.name:{_WIDTH}} " + "  ".join(word for word in words if word))


def _event_line(event: str, server: Heard, *, as_json: bool) -> str:
    if as_json:
        return json.dumps({"event": event, "server": as_document(server)})
    return f"{event:8} {as_line(server)}"


async def _heard(browser: Browser) -> list[Heard]:
    networks = await asyncio.to_thread(on_link_networks)
    return await check_health(await browser.servers(), networks)


async def _change(browser: Browser, seconds: float) -> None:
    """Wait for news, or until it is time to ask again who answers; news that come together count once."""
    started = time.monotonic()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await browser.changed.wait()
    if time.monotonic() - started < 1:
        await asyncio.sleep(0.5)
    browser.changed.clear()


def _links() -> tuple[Link, ...]:
    links = links_of(choose(None, "", candidates()).announced)
    if not links:
        raise StartupError("This machine has no local network address to listen on. Connect it to a network first.")
    return links
