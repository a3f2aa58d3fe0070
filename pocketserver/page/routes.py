"""The page's own routes: the page, its files, its state, pairing, and the owner's way in."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, TypeVar

import msgspec
from aiohttp import hdrs, web
from msgspec import Meta

from pocketserver.errors import Code, Refusal
from pocketserver.lan import qr
from pocketserver.page.activity import Activity
from pocketserver.page.documents import PageState, page_state
from pocketserver.page.files import SAFETY, PageFile, page_files, rendered, template
from pocketserver.page.owner import SESSION_HEADER, OwnerSessions
from pocketserver.page.pairing import PairingDesk
from pocketserver.page.subject import Subject
from pocketserver.wire.context import KEY_NAME, body_of
from pocketserver.wire.json_body import decode

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PREFIX = "/page/"
STATE_ROUTE = "/page/state"
"""Asked every second or two by each open page, so that its success is no line in the log."""
BROWSER_PATHS: Mapping[str, str] = {"/v1": "/", "/v1/": "/"}
"""Where a person's browser is sent: the base URL, which a phone's camera opens, leads to the page."""
BODY_SECONDS = 10.0
_MOST_BODY_BYTES = 4096
Body = TypeVar("Body", bound=msgspec.Struct)


class PairRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A device's code, and what it calls itself."""

    code: Annotated[str, Meta(max_length=32)]
    name: Annotated[str, Meta(max_length=200)] = "device"


class OwnerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The one-time token of an owner's link."""

    token: Annotated[str, Meta(max_length=200)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One server's page: what it shows, and who may do what on it."""

    subject: Subject
    activity: Activity
    pairing: PairingDesk
    owners: OwnerSessions

    def state(self, request: web.Request) -> PageState:
        """What the reader of this request may see."""
        owner = self.owners.holds(request.headers.get(SESSION_HEADER))
        return page_state(self.subject, self.activity, authenticated=KEY_NAME in request, owner=owner)

    def owner_url(self) -> str:
        """A link that opens the page as its owner's, once; on this machine, so that it crosses no network."""
        return f"{_root(self.subject.local_url())}#owner={self.owners.new_token()}"

    def pairing_url(self, code: str) -> str:
        return f"{_root(self.subject.base_url())}#pair={code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRoutes:
    """What everybody may ask. `plain` answers at `/` whoever wants no HTML."""

    page: Page
    plain: Callable[[], str]
    _files: Mapping[str, PageFile] = field(default_factory=page_files, init=False)
    _template: str = field(default_factory=template, init=False)

    def routes(self) -> list[web.RouteDef]:
        files = [web.get(PREFIX + name, partial(self._file, file)) for name, file in self._files.items()]
        return [
            web.get("/", self.root),
            *files,
            web.get(STATE_ROUTE, safely(self.state)),
            web.get("/page/qr.svg", safely(self.code)),
            web.post("/page/pair", safely(self.pair)),
            web.post("/page/owner", safely(self.own)),
        ]

    async def root(self, request: web.Request) -> web.Response:
        """The page for browsers, a line for programs."""
        if "text/html" not in request.headers.get(hdrs.ACCEPT, ""):
            return web.Response(text=self.plain(), headers={hdrs.VARY: hdrs.ACCEPT})
        text = rendered(self._template, self.page.state(request))
        headers = {**SAFETY, "Cache-Control": "no-store", "Vary": "Accept"}
        return web.Response(text=text, content_type="text/html", headers=headers)

    async def _file(self, file: PageFile, request: web.Request) -> web.Response:
        headers = {**SAFETY, "Cache-Control": "no-cache", "ETag": file.etag}
        if request.headers.get(hdrs.IF_NONE_MATCH) == file.etag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=file.body, headers={**headers, "Content-Type": file.content_type})

    async def state(self, request: web.Request) -> web.Response:
        return as_json(self.page.state(request))

    async def code(self, _request: web.Request) -> web.Response:
        """The base URL as a QR code, without any key."""
        return web.Response(body=await drawn(self.page.subject.base_url()), content_type="image/svg+xml")

    async def pair(self, request: web.Request) -> web.Response:
        """A code for a key."""
        wanted = await posted(request, PairRequest, "code")
        key, name = await self.page.pairing.exchange(wanted.code, wanted.name, request.remote or "")
        return as_json({"api_key": key, "name": name, "base_url": self.page.subject.base_url()})

    async def own(self, request: web.Request) -> web.Response:
        """A one-time token for a session."""
        wanted = await posted(request, OwnerRequest, "token")
        return as_json({"session": self.page.owners.exchange(wanted.token, request.remote or "")})


async def posted(request: web.Request, kind: type[Body], required: str) -> Body:
    """A small JSON body. Raises what `decode` raises, and REQUEST_TOO_LARGE."""
    body = await body_of(request, BODY_SECONDS)
    if len(body) > _MOST_BODY_BYTES:
        raise Refusal(Code.REQUEST_TOO_LARGE, f"The body is larger than {_MOST_BODY_BYTES:,} bytes.")
    return decode(body, kind, required=required)


async def drawn(text: str) -> bytes:
    """A QR code as SVG; making one takes some milliseconds."""
    return await asyncio.to_thread(qr.svg, text)


def safely(handler: Handler) -> Handler:
    """The same handler; its answers are kept by no cache and read by no other page."""

    async def answered(request: web.Request) -> web.StreamResponse:
        response = await handler(request)
        response.headers.update(SAFETY)
        response.headers["Cache-Control"] = "no-store"
        return response

    return answered


def as_json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _root(url: str) -> str:
    return url.removesuffix("/v1") + "/"
