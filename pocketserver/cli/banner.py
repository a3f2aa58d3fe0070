"""What a person sees on standard error while `serve` runs: risks, progress, the address, a QR code, how to stop."""

import asyncio
import os
import sys

from pocketserver import __version__
from pocketserver.chat import EngineState
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


def warn_of_risks(settings: Settings) -> None:
    """Open doors are said loudly at every start."""
    if settings.auth == "off" and not is_loopback(settings.host):
        say("WARNING: authentication is off. Everybody on this network can use the server (--auth on).")
    if settings.allow_public:
        say("WARNING: --allow-public answers requests from the whole internet, over unencrypted HTTP.")


def show(server: Server) -> None:
    """Address, code, model, and how to stop."""
    settings, terminal = server.effective.settings, sys.stderr.isatty()
    say()
    say(f"  pocketserver {__version__}, profile {server.effective.profile.name}")
    say(f"  Base URL   {server.base_url}")
    for other in server.other_urls:
        say(f"             {other}")
    if server.base_url != server.local_url:
        say(f"  Here       {server.local_url}")
    if server.page is not None:
        page = server.base_url.removesuffix("v1")
        say(f"  Page       {page} (phones: `pocketserver pair`, its owner: `pocketserver page`)")
    say(f"  API key    {_key_line(server)}")
    say(f"  Model      {server.model_id or 'none'}")
    say("  Stop       Ctrl-C ends the server, Ctrl-\\ cancels the running answer")
    say()
    style = qr.style_for(None, is_terminal=terminal, no_color="NO_COLOR" in os.environ)
    if terminal and not is_loopback(settings.host):
        say(qr.terminal_text(server.base_url, style))


def _key_line(server: Server) -> str:
    if server.keys is None:
        return "none asked for"
    return "shown by `pocketserver key show`; a QR code with it by `pocketserver qr --pair`"


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
    if status.state is EngineState.READY:
        if shown >= 0:
            progress("Loading the model ", 1.0)
        safe = " (in safe mode: this processor crashes with repacked weights)" if status.safe_mode else ""
        say(f"  Ready: {status.model}, {status.context_size} tokens of context{safe}")
    else:
        say(f"  No model: {status.problem}")


def say_goodbye(server: Server) -> None:
    if server.door.busy:
        seconds = server.effective.settings.shutdown_grace_seconds
        say(f"  Stopping: the running answer has {seconds:g} seconds to finish. Ctrl-C again ends at once.")
