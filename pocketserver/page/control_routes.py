"""What `pocketserver page` and `pocketserver pair` ask of a running server, on its control listener."""

from dataclasses import dataclass

import msgspec
from aiohttp import web

from pocketserver.errors import UsageError
from pocketserver.page.pairing import LIFETIME_SECONDS
from pocketserver.page.routes import Page, as_json

NO_PAGE = "This server has no page. Start it without --no-page, with the profile pocketllm or hub."


@dataclass(frozen=True, slots=True)
class PageControl:
    """`page` None is a server without one: it says so."""

    page: Page | None

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/page/link", self._link),
            web.post("/page/pairing", self._offer),
            web.get("/page/pairing", self._shown),
        ]

    async def _link(self, _request: web.Request) -> web.Response:
        if self.page is None:
            return _cannot(NO_PAGE)
        return as_json({"url": self.page.owner_url()})

    async def _offer(self, _request: web.Request) -> web.Response:
        if self.page is None:
            return _cannot(NO_PAGE)
        try:
            code = self.page.pairing.offer()
        except UsageError as error:
            return _cannot(str(error))
        shown = self.page.pairing.shown()
        assert shown is not None, "an offer was just made"
        url = self.page.pairing_url(code)
        return as_json({"number": shown.number, "code": code, "url": url, "seconds": LIFETIME_SECONDS})

    async def _shown(self, _request: web.Request) -> web.Response:
        return as_json({"pairing": None if self.page is None else self.page.pairing.shown()})


def _cannot(sentence: str) -> web.Response:
    return web.Response(body=msgspec.json.encode({"error": sentence}), status=409, content_type="application/json")
