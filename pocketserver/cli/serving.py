"""What `serve` does from settings to exit: engine, listeners, announcement, banner, signals, shutdown."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from pocketserver import __version__
from pocketserver.assembly import assemble, make_engine
from pocketserver.chat import EngineState
from pocketserver.cli import banner
from pocketserver.errors import StartupError
from pocketserver.lan import address, identity, mdns
from pocketserver.lan.names import Auth, Description, Readiness
from pocketserver.listening import is_loopback
from pocketserver.models.prepare import prepare_model
from pocketserver.server import Server, serving
from pocketserver.settings import Effective
from pocketserver.telemetry import logs

_POLL_SECONDS = 0.5


def run(effective: Effective) -> None:
    """Serve until a signal, `pocketserver stop --server`, or the end of the parent's pipe. Raises StartupError."""
    if sys.platform == "win32":
        asyncio.run(_serve(effective))
        return
    import uvloop

    uvloop.run(_serve(effective))


async def _serve(effective: Effective) -> None:
    settings = effective.settings
    with logs.configure(form=settings.log, level=settings.log_level) as log:
        banner.warn_of_risks(settings)
        model = await prepare_model(settings, progress=banner.fetch_progress) if settings.engine == "llama" else None
        server = assemble(effective, make_engine(effective, model), log, model)
        server.advertised_host = address.choose(settings.advertise, settings.host).primary.address
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(serving(server, log.record))
            stack.enter_context(_signals(server))
            await server.engine.start()
            await stack.enter_async_context(_announced(server))
            banner.show(server)
            await asyncio.to_thread(_write_ready_line, server, settings.ready_json)
            if settings.exit_on_stdin_close:
                _end_with_parent(server)
            following = asyncio.create_task(banner.follow_loading(server))
            stack.callback(following.cancel)
            await server.shut_down.wait()
            banner.say_goodbye(server)


@contextlib.contextmanager
def _signals(server: Server) -> "contextlib._GeneratorContextManager[None]":
    loop = asyncio.get_running_loop()

    def end() -> None:
        if server.shut_down.is_set():
            os._exit(1)  # a second signal ends at once; the model process ends with its pipe
        server.shut_down.set()

    handlers: dict[int, Callable[[], object]] = {signal.SIGINT: end, signal.SIGTERM: end}
    if hasattr(signal, "SIGQUIT"):
        handlers[signal.SIGQUIT] = server.door.stop
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
