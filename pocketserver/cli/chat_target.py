"""Which server `pocketserver chat` talks to, and with which key.

This machine's own key goes to this machine's own server and to nobody else. What is heard on the network may come from
anybody, so a person chooses among it, and it gets no key before that.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import typer

from pocketserver import run_file
from pocketserver.cli.chat_client import base_url_of
from pocketserver.cli.discover import as_line
from pocketserver.errors import StartupError, UsageError
from pocketserver.gate.keys import KeyStore
from pocketserver.lan.address import candidates, choose, on_link_networks
from pocketserver.lan.browse import Heard, browsing, check_health
from pocketserver.lan.responder import links_of
from pocketserver.listening import is_loopback
from pocketserver.run_file import RunningServer
from pocketserver.settings import Settings

LISTEN_SECONDS = 2.5
_MOST_OFFERED = 20

Choose = Callable[[Sequence[str]], int]
"""Lets a person choose one of these lines; returns its index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server, and the key that it may be shown."""

    base_url: str
    key: str | None


def find_target(
    settings: Settings, url: str | None, *, pid: int | None, port: int | None, choose_one: Choose | None
) -> Target:
    """The server that was meant: the URL's; else the one that runs here; else one that is heard on the network.

    `choose_one` is None where nobody can be asked. Raises UsageError listing what there is when that is not clear.
    """
    running = run_file.running_servers(settings.home_folder / "run")
    if url is not None:
        base_url = base_url_of(url)
        own = next((server for server in running if _is_at(server, base_url)), None)
        return Target(base_url=base_url, key=settings.api_key) if own is None else _own(settings, own, base_url)
    if pid is not None or port is not None:
        return _own(settings, run_file.choose(settings.home_folder / "run", pid=pid, port=port))
    if running:
        return _own(settings, _one_running(settings, running, choose_one))
    if choose_one is None:
        raise UsageError(
            "No server runs here. Give the URL of one: `pocketserver discover` lists those of the network."
        )
    return Target(base_url=_one_heard(choose_one), key=settings.api_key)


def _own(settings: Settings, server: RunningServer, base_url: str | None = None) -> Target:
    """This machine's server with this machine's key."""
    keys = KeyStore(settings.home_folder, main_key_override=settings.api_key)
    return Target(base_url=base_url or server.base_url, key=keys.main_key())


def _is_at(server: RunningServer, base_url: str) -> bool:
    parts = urlsplit(base_url)
    return parts.scheme == "http" and parts.port == server.port and is_loopback(parts.hostname or "")


def _one_running(settings: Settings, running: Sequence[RunningServer], choose_one: Choose | None) -> RunningServer:
    if len(running) == 1 or choose_one is None:
        return run_file.choose(settings.home_folder / "run", pid=None, port=None)
    return running[choose_one([f"{server.base_url} ({server.profile}, {server.engine})" for server in running])]


def _one_heard(choose_one: Choose) -> str:
    typer.echo("No server runs on this machine; listening for others on the network …", err=True)
    heard = [server for server in asyncio.run(_heard()) if server.base_url is not None][:_MOST_OFFERED]
    if not heard:
        raise StartupError(
            "No server was heard on this network either. Start one with `pocketserver serve`, or give its URL. "
            "A guest Wi-Fi keeps devices apart."
        )
    base_url = heard[choose_one([as_line(server) for server in heard])].base_url
    assert base_url is not None
    return base_url


async def _heard() -> list[Heard]:
    links = links_of(choose(None, "", candidates()).announced)
    if not links:
        return []
    try:
        async with browsing(links) as browser:
            await asyncio.sleep(LISTEN_SECONDS)
            return await check_health(await browser.servers(), on_link_networks())
    except OSError as error:
        raise StartupError(f"Other servers cannot be heard ({error}). Give the URL of one.") from error
