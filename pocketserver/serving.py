"""One server from its sockets to their end: listeners, control, run file, keys, shutdown."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from pocketserver import control, run_file
from pocketserver.application import application, error_shapes
from pocketserver.errors import Code, Refusal
from pocketserver.gate.keys import Identity
from pocketserver.http_server import serving_http
from pocketserver.listening import PortTaken, listen
from pocketserver.page.control_routes import PageControl
from pocketserver.room.owner import RoomControl
from pocketserver.server import Server
from pocketserver.settings import Effective
from pocketserver.simulator.routes import ControlRoutes

LAST_WORDS_SECONDS = 2.0


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[Server]:
    """Listen, open the control listener, write the run file; undo all of it in reverse on leaving.

    The engine is started by the caller's `engine.start()`; it is closed here, last. Raises StartupError when the port
    is taken.
    """
    settings = server.effective.settings
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.engine.close)
        for work in server.at_work:
            await stack.enter_async_context(work)
        sockets = _listen(server.effective)
        for listener in sockets:
            stack.callback(listener.close)
        server.port = sockets[0].getsockname()[1]
        app = application(server)
        listeners = await stack.enter_async_context(
            serving_http(
                app,
                sockets,
                refuse=error_shapes(server)["/"].response,
                log=server.log.logger,
                reader_seconds=settings.client_seconds,
            )
        )
        if server.simulator is not None:
            await stack.enter_async_context(server.simulator.on_air(listeners))
        server.control_url, server.control_token = await stack.enter_async_context(control.listening(_control(server)))
        path = run_file.write(settings.home_folder / "run", _run_entry(server))
        stack.callback(path.unlink, missing_ok=True)
        await stack.enter_async_context(_keys_watched(server))
        try:
            yield server
        finally:
            await _let_running_finish(server)


def _listen(effective: Effective) -> list[socket.socket]:
    """The port that the settings name; any free one when a profile's own port is taken and it may move."""
    settings = effective.settings
    try:
        return listen(settings.host, settings.port)
    except PortTaken:
        if not effective.profile.moves_when_taken or not effective.origins["port"].startswith("profile"):
            raise
        return listen(settings.host, 0)


def _control(server: Server) -> control.Control:
    routes = PageControl(server.page).routes()
    routes += RoomControl(server.room_host).routes()
    if server.simulator is not None:
        routes += ControlRoutes(server.simulator).routes()
    return control.Control(status=server.status, stop=server.door.stop, shut_down=server.shut_down.set, routes=routes)


def _run_entry(server: Server) -> run_file.RunningServer:
    return run_file.RunningServer(
        pid=os.getpid(),
        port=server.port,
        base_url=server.local_url,
        profile=server.effective.profile.name,
        engine=server.engine.name,
        control_url=server.control_url,
        control_token=server.control_token,
        started=time.time(),
    )


@asynccontextmanager
async def _keys_watched(server: Server) -> AsyncIterator[None]:
    """Follow the key file: revoking a key takes effect without a restart, on its running generation too."""
    keys = server.keys
    if keys is None:
        yield
        return

    def end(identity: Identity) -> None:
        server.door.end_owned_by(
            identity.name, Refusal(Code.INVALID_API_KEY, "The API key of this request has been revoked.")
        )
        if server.room_host is not None:
            server.room_host.key_revoked(identity)

    watching = asyncio.create_task(keys.watch(end))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await asyncio.to_thread(keys.write_uses)


async def _let_running_finish(server: Server) -> None:
    """Admit nobody, give the running request its grace, then end it with an error that its client sees."""
    server.door.close()
    grace = server.effective.settings.shutdown_grace_seconds
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(grace):
            await server.door.idle()
    if server.door.end_running(Refusal(Code.MODEL_NOT_LOADED, "The server is shutting down. Connect again later.")):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await server.door.idle()
