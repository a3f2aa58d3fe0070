"""The gate as one aiohttp middleware: Host, peer, Origin, key, path, method, encoding, size, in this order."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from aiohttp import web

from pocketserver.errors import Code, Refusal
from pocketserver.gate.hosts import HostRule, OriginRule, PeerRule
from pocketserver.gate.keys import KeyStore
from pocketserver.gate.limits import WrongKeyThrottle

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
DECODED = frozenset({"", "identity", "gzip", "deflate"})
"""Content codings of a request body that are undone for the handler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrance:
    """Who may come in. It knows nothing of chat; every refusal is raised as `Refusal` for the layer above to render.

    `route_scopes` names the scope of a route where it is not `chat`. `base_url` is shown to who mistypes a path.
    """

    host_rule: HostRule
    peer_rule: PeerRule
    origin_rule: OriginRule
    keys: KeyStore | None
    throttle: WrongKeyThrottle
    keyless: frozenset[str]
    route_scopes: Mapping[str, str]
    max_body_bytes: int
    base_url: Callable[[], str]
    key_name: web.RequestKey[str]
    _scope: str = field(default="chat")

    @property
    def middleware(self) -> Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]:
        @web.middleware
        async def gate(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._check_origin_of(request)
            route = route_template(request)
            self._check_key(request, route)
            self._check_route(request)
            self._check_body(request)
            response = await handler(request)
            return response

        return gate

    def _check_origin_of(self, request: web.Request) -> None:
        self.host_rule.check(request.headers.getall("Host", []), request.url.raw_authority if _absolute(request) else None)
        self.peer_rule.check(request.remote or "")
        self.origin_rule.check(request.headers.getall("Origin", []))

    def _check_key(self, request: web.Request, route: str | None) -> None:
        """A keyless route still learns who asks, when the key is right: it shows more then."""
        if self.keys is None:
            return
        keyless = route in self.keyless
        authorization = request.headers.getall("Authorization", [])
        if keyless and not authorization:
            return
        peer = request.remote or ""
        try:
            identity = self.keys.authenticate(authorization)
        except Refusal as refusal:
            if keyless:
                return
            if refusal.code is Code.INVALID_API_KEY:
                self.throttle.note_wrong(peer)
            raise
        self.keys.require(identity, self.route_scopes.get(route or "", self._scope))
        request[self.key_name] = identity.name

    def _check_route(self, request: web.Request) -> None:
        problem = request.match_info.http_exception
        if isinstance(problem, web.HTTPMethodNotAllowed):
            allowed = tuple(sorted(problem.allowed_methods))
            message = f"{request.path} takes {', '.join(allowed)}, not {request.method[:20]}."
            raise Refusal(Code.METHOD_NOT_ALLOWED, message, allow=allowed)
        if problem is not None:
            raise Refusal(
                Code.UNKNOWN_ROUTE,
                f"There is no {request.path[:200]} here. The base URL for clients is {self.base_url()}.",
            )

    def _check_body(self, request: web.Request) -> None:
        if request.headers.get("Content-Encoding", "").strip().lower() not in DECODED:
            raise Refusal(
                Code.UNSUPPORTED_ENCODING,
                "The body's Content-Encoding is not understood. Send it uncompressed, or as gzip or deflate.",
            )
        if request.content_length is not None and request.content_length > self.max_body_bytes:
            raise too_large(self.max_body_bytes)


def route_template(request: web.Request) -> str | None:
    """The pattern that matched (`/v1/models/{id}`), None for an unknown path. Never text from the request."""
    resource = request.match_info.route.resource
    return None if resource is None else resource.canonical


def too_large(limit: int) -> Refusal:
    return Refusal(
        Code.REQUEST_TOO_LARGE, f"The body is larger than {limit:,} bytes. Send less text in one request."
    )


def _absolute(request: web.Request) -> bool:
    """Whether the request line holds a whole URL, as proxies send it."""
    return "://" in request.raw_path.split("?", 1)[0] if False else request.raw_path.startswith(("http://", "https://"))
