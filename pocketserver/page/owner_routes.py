"""What only the owner of the page may do: see and make keys, pair devices, stop the answer, change the model."""

import asyncio
from dataclasses import dataclass
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from pocketserver.errors import Code, Refusal, StartupError, UsageError
from pocketserver.gate.keys import MAIN, KeyStore
from pocketserver.page.owner import SESSION_HEADER
from pocketserver.page.pairing import LIFETIME_SECONDS
from pocketserver.page.routes import Handler, Page, as_json, drawn, posted, safely


class KeyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A key to be made, with one scope."""

    name: Annotated[str, Meta(max_length=64)]
    scope: Annotated[str, Meta(max_length=32)] = "chat"


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The model to have in memory from now on."""

    model: Annotated[str, Meta(max_length=200)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRoutes:
    """Each asks for the session first: a key, even the main one, and a loopback address are not enough."""

    page: Page

    def routes(self) -> list[web.RouteDef]:
        table: list[tuple[str, str, Handler]] = [
            ("DELETE", "/page/owner", self._leave),
            ("GET", "/page/key", self._main_key),
            ("GET", "/page/keys", self._keys),
            ("POST", "/page/keys", self._new_key),
            ("DELETE", "/page/keys/{name}", self._revoke),
            ("GET", "/page/pairing", self._pairing),
            ("POST", "/page/pairing", self._pair),
            ("POST", "/page/stop", self._stop),
            ("POST", "/page/model", self._load),
        ]
        return [web.route(method, path, safely(self._owned(handler))) for method, path, handler in table]

    def _owned(self, handler: Handler) -> Handler:
        async def checked(request: web.Request) -> web.StreamResponse:
            self.page.owners.require(request.headers.get(SESSION_HEADER))
            return await handler(request)

        return checked

    async def _leave(self, request: web.Request) -> web.Response:
        self.page.owners.end(request.headers[SESSION_HEADER])
        return as_json({"ended": True})

    async def _main_key(self, _request: web.Request) -> web.Response:
        return as_json({"api_key": await asyncio.to_thread(self._key_store().main_key)})

    async def _keys(self, _request: web.Request) -> web.Response:
        return as_json({"keys": await asyncio.to_thread(self._key_store().list)})

    async def _new_key(self, request: web.Request) -> web.Response:
        wanted = await posted(request, KeyRequest, "name")
        try:
            key = await asyncio.to_thread(self._key_store().new, wanted.name, (wanted.scope,))
        except StartupError as error:
            raise _refused(error, "name") from error
        return as_json({"api_key": key, "name": wanted.name})

    async def _revoke(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        try:
            await asyncio.to_thread(self._key_store().revoke, name)
        except StartupError as error:
            raise _refused(error, "name") from error
        return as_json({"revoked": name, "replaced": name == MAIN})

    async def _pairing(self, _request: web.Request) -> web.Response:
        return as_json({"pairing": self.page.pairing.shown()})

    async def _pair(self, _request: web.Request) -> web.Response:
        """A code as text and as a QR code."""
        try:
            code = self.page.pairing.offer()
        except UsageError as error:
            raise _refused(error, "code") from error
        url = self.page.pairing_url(code)
        return as_json({"code": code, "url": url, "svg": (await drawn(url)).decode(), "seconds": LIFETIME_SECONDS})

    async def _stop(self, _request: web.Request) -> web.Response:
        return as_json({"stopped": self.page.subject.lane.stop()})

    async def _load(self, request: web.Request) -> web.Response:
        """Change the model, after the running answer; returns when it is loaded."""
        load = self.page.subject.load
        if load is None:
            raise Refusal(
                Code.INVALID_PARAMETER,
                "This server keeps the model it was started with. Start it again with --model NAME.",
                param="model",
            )
        wanted = await posted(request, ModelRequest, "model")
        return as_json({"model": wanted.model, "seconds": round(await load(wanted.model), 3)})

    def _key_store(self) -> KeyStore:
        keys = self.page.subject.keys
        if keys is None:
            raise Refusal(Code.INVALID_PARAMETER, "This server asks for no key. Start it with --auth on to have some.")
        return keys


def _refused(error: StartupError, param: str) -> Refusal:
    """A command's sentence as an answer: these are the owner's own words and files."""
    return Refusal(Code.INVALID_PARAMETER, str(error), param=param)
