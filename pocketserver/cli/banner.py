"""What a person sees on standard error while `serve` runs: risks, progress, the address, a QR code, how to stop."""

import asyncio
import os
import sys

from pocketserver import __version__
from pocketserver.chat import EngineState, EngineStatus
from pocketserver.cli.scene import Fact
from pocketserver.lan import qr
from pocketserver.listening import is_loopback
from pocketserver.models.progress import Progress
from pocketserver.server import Server
from pocketserver.settings import Settings

_BAR_WIDTH = 30
_POLL_SECONDS = 0.1


def say(text: str = "") -> None:
    """A line for the person; standard output carries only what was asked for."""
    print(text, file=sys.stderr, flush=True)


def risks(settings: Settings) -> list[str]:
    """Open doors, which are said loudly at every start."""
    found = []
    if settings.auth == "off" and not is_loopback(settings.host):
        found.append("WARNING: authentication is off. Everybody on this network can use the server (--auth on).")
    if settings.allow_public:
        found.append("WARNING: --allow-public answers requests from the whole internet, over unencrypted HTTP.")
    return found


def show(server: Server) -> None:
    """Address, code, model, and how to stop."""
    say()
    say(f"  {title(server)}")
    for fact in facts(server):
        say(f"  {fact.label:11}{fact.value}{fact.hint}")
    say("  Stop       Ctrl-C ends the server, Ctrl-\\ cancels the running answer")
    say()
    if code := qr_code(scannable(server)):
        say(code)


def title(server: Server) -> str:
    return f"pocketserver {__version__}, profile {server.effective.profile.name}"


def facts(server: Server) -> list[Fact]:
    """What other devices need to know, and where to learn what is secret."""
    found = [Fact(label="Base URL", value=server.base_url), *(Fact(label="", value=url) for url in server.other_urls)]
    if server.base_url != server.local_url:
        found.append(Fact(label="Here", value=server.local_url))
    if server.page is not None:
        hint = " (phones: `pocketserver pair`, its owner: `pocketserver page`)"
        found.append(Fact(label="Page", value=server.base_url.removesuffix("v1"), hint=hint))
    return [*found, _key_fact(server), Fact(label="Model", value=server.model_id or "none"), *_room_facts(server)]


def _room_facts(server: Server) -> list[Fact]:
    """The room that is open here, or the one that was joined."""
    if server.room_host is not None:
        code = server.room_host.code
        return [Fact(label="Room", value=code, hint=f" (others: `pocketserver join {code}`, with a key)")]
    if server.effective.settings.engine != "room":
        return []
    hint = "" if server.engine.status.connected else " (its host is being looked for)"
    return [Fact(label="Room", value=server.room, hint=hint)]


def scannable(server: Server) -> str:
    """The base URL for phones; empty when nobody else could connect."""
    return "" if is_loopback(server.effective.settings.host) else server.base_url


def qr_code(address: str) -> str:
    """The code for a terminal; empty without an address, and where it cannot be drawn."""
    style = qr.style_for(None, is_terminal=sys.stderr.isatty(), no_color="NO_COLOR" in os.environ)
    return qr.terminal_text(address, style) if address else ""


def _key_fact(server: Server) -> Fact:
    if server.keys is None:
        return Fact(label="API key", value="none asked for")
    shown = "shown by `pocketserver key show`"
    return Fact(label="API key", value=shown, hint="; a QR code with it by `pocketserver qr --pair`")


def progress(label: str, done: float) -> None:
    """A bar on a terminal, rewritten in place; nothing elsewhere."""
    if sys.stderr.isatty():
        filled = round(done * _BAR_WIDTH)
        bar = "#" * filled + "." * (_BAR_WIDTH - filled)
        print(f"\r  {label} [{bar}] {done:4.0%} ", end="" if done < 1 else "\n", file=sys.stderr, flush=True)


def fetch_progress(now: Progress) -> None:
    progress("Fetching the model", now.done_bytes / now.total_bytes if now.total_bytes else 0.0)


async def follow_loading(server: Server) -> None:
    """Show the model's way into memory, then whether it is ready."""
    shown = -1.0
    while (status := server.engine.status).state is EngineState.LOADING:
        done = status.load_progress or 0.0
        if done != shown:
            progress("Loading the model ", min(done, 0.99))
            shown = done
        if status.tuning_progress is not None:
            progress("Measuring, once   ", min(status.tuning_progress, 0.99))
        await asyncio.sleep(_POLL_SECONDS)
    if status.state is EngineState.READY and shown >= 0:
        progress("Loading the model ", 1.0)
    say(f"  {loaded(status)}")


def loaded(status: EngineStatus) -> str:
    """What became of loading the model."""
    if status.state is EngineState.NO_MODEL and status.loads_on_request and status.problem is None:
        return "The model is loaded by the first request that asks for it"
    if status.state is not EngineState.READY:
        return f"No model: {status.problem}"
    safe = " (in safe mode: this processor crashes with repacked weights)" if status.safe_mode else ""
    return f"Ready: {status.model}, {status.context_size} tokens of context{safe}"


def say_goodbye(server: Server) -> None:
    if server.door.busy:
        seconds = server.effective.settings.shutdown_grace_seconds
        say(f"  Stopping: the running answer has {seconds:g} seconds to finish. Ctrl-C again ends at once.")
