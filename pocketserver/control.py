"""The control listener: loopback only, with a token of its own, for commands on the same machine."""

import hmac
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from pocketserver.listening import listen


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What a command on this machine can ask of a running server."""

    status: Callable[[], dict[str, Any]]
    stop: Callable[[], bool]
    """End the running generation; False when nothing runs."""
    shut_down: Callable[[], None]
    routes: Sequence[web.RouteDef] = ()
    """What this server's engine can be asked beside that."""


@asynccontextmanager
async def listening(control: Control) -> AsyncIterator[tuple[str, str]]:
    """Listen on a free loopback port; yields URL and token."""
    token = secrets.token_urlsafe(32)
    runner = web.AppRunner(_application(control, token), handler_cancellation=True, access_log=None)
    await runner.setup()
    listener = listen("127.0.0.1", 0)[0]
    try:
        await web.SockSite(runner, listener).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", token
    finally:
        await runner.cleanup()
        listener.close()


def _application(control: Control, token: str) -> web.Application:
    expected = f"Bearer {token}".encode()

    @web.middleware
    async def authorized(request: web.Request, handler: Any) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if not hmac.compare_digest(given, expected):
            return _json({"error": "The control token is missing or wrong."}, status=401)
        try:
            response: web.StreamResponse = await handler(request)
        except msgspec.DecodeError as error:
            return _json({"error": f"The body cannot be read: {error}."}, status=400)
        return response

    async def status(_request: web.Request) -> web.Response:
        return _json(control.status())

    async def stop(_request: web.Request) -> web.Response:
        return _json({"stopped": control.stop()})

    async def shut_down(_request: web.Request) -> web.Response:
        control.shut_down()
        return _json({"shutting_down": True})

    application = web.Application(middlewares=[authorized])
    application.add_routes([web.get("/status", status), web.post("/stop", stop), web.post("/shutdown", shut_down)])
    application.add_routes(control.routes)
    return application


def _json(value: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")
