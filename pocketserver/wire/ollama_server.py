"""What this family's clients ask before anything else: which version is this, and where."""

from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from pocketserver.wire.ollama_documents import document

VERSION = "0.13.0"
"""The release whose API this family follows. Clients compare it as a version and want 0.6.4 or later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaServer:
    port: Callable[[], int]

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/api/version", self.version), web.get("/api/system/ai/providers", self.providers)]

    async def version(self, _request: web.Request) -> web.Response:
        return document({"version": VERSION})

    async def providers(self, _request: web.Request) -> web.Response:
        """Where this server listens. Approximate: the shape of the original is not published."""
        port = self.port()
        return document({"providers": [{"id": "roachinference", "base_url": f"http://127.0.0.1:{port}", "port": port}]})
