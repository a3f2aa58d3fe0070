"""The gate as one aiohttp middleware: Host, peer, Origin, key, path, method, encoding, size, in this order."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from aiohttp import hdrs, web

from pocketserver.errors import Code, Refusal
from pocketserver.gate.hosts import HostRule, OriginRule, PeerRule
from pocketserver.gate.keys import KeyStore
from pocketserver.gate.limits import WrongKeyThrottle

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
DEFAULT_SCOPE = "chat"
VIA_HEADER = "x-pocketserver-via"
"""The servers that a request has passed on its way."""
DECODED = frozenset({"", "identity", "gzip", "deflate"})
"""Content codings of a request body that are undone for the handler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrance:
    """Who may come in. It knows nothing of chat; every refusal is raised as `Refusal` for the layer above to render.

    `keys` None lets everybody in. `route_scopes` names the key scope of a route where it is not `chat`. `base_url` is
    shown to who mistypes a path. The name of the key that was used goes into the request under `key_name`.
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
    instance: str = ""
    """Our name in the chain of servers that a request passes; one that passed us already is refused."""
    unserved: Mapping[str, str] = field(default_factory=dict)
    """What is said of paths that clients know and this server does not serve."""
    browser_paths: Mapping[str, str] = field(default_factory=dict)
    """Paths that are nothing to programs; a person's browser that opens one is sent to the other."""
    bare_paths: tuple[str, ...] = ()
    """Parts of the paths of clients that are given the address without `/v1`, which they add or do without."""
    takes_x_api_key: bool = False
    """Whether a key may also come in `x-api-key`, as Anthropic's clients send it."""

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let the request in, or raise the Refusal."""
        self._check_origin_of(request)
        if request.method == hdrs.METH_OPTIONS and hdrs.ORIGIN in request.headers:
            preflight = self._preflight(request)
            if preflight is not None:
                return preflight
        if request.path in self.browser_paths and _wants_page(request):
            return web.Response(status=303, headers={hdrs.LOCATION: self.browser_paths[request.path]})
        self._check_key(request)
        self._check_route(request)
        self._check_body(request)
        return await handler(request)

    async def allow_reading(self, request: web.Request, response: web.StreamResponse) -> None:
        """Let pages of configured origins read the answer; for `Application.on_response_prepare`."""
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is not None:
            response.headers.update(self.origin_rule.cors_headers(origin))

    def _check_origin_of(self, request: web.Request) -> None:
        headers = request.headers
        hosts = headers.getall(hdrs.HOST, [])
        self.host_rule.check(hosts, _authority(request))
        self.peer_rule.check(request.remote or "")
        if hdrs.ORIGIN in headers:
            self.origin_rule.check(headers.getall(hdrs.ORIGIN), path=request.path, host=hosts[0])
        if self.instance and self.instance in headers.get(VIA_HEADER, ""):
            raise Refusal(Code.UPSTREAM_FAILED, "This server is its own upstream. Its owner sets another --upstream.")

    def _preflight(self, request: web.Request) -> web.Response | None:
        """A browser's question before its request; it carries no key."""
        headers = self.origin_rule.preflight_headers(
            request.headers[hdrs.ORIGIN],
            requested_headers=request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, ""),
            private_network=request.headers.get("Access-Control-Request-Private-Network") == "true",
        )
        return None if headers is None else web.Response(status=204, headers=headers)

    def _check_key(self, request: web.Request) -> None:
        """A keyless route still learns who asks when the key is right: it shows more then."""
        if self.keys is None:
            return
        route = route_template(request)
        keyless = route in self.keyless
        authorization = request.headers.getall(hdrs.AUTHORIZATION, [])
        x_api_key = request.headers.getall("x-api-key", []) if self.takes_x_api_key else []
        if keyless and not (authorization or x_api_key):
            return
        scope = self.route_scopes.get(route or "", DEFAULT_SCOPE)
        try:
            identity = self.keys.authenticate(authorization, x_api_key, scope=scope)
        except Refusal as refusal:
            if refusal.code is Code.INVALID_API_KEY:
                self.throttle.note_wrong(request.remote or "")
            if keyless:
                return
            raise
        if not keyless:
            self.keys.require(identity, scope)
        request[self.key_name] = identity.name

    def _check_route(self, request: web.Request) -> None:
        problem = request.match_info.http_exception
        if problem is None:
            return
        if isinstance(problem, web.HTTPMethodNotAllowed):
            allowed = tuple(sorted(problem.allowed_methods))
            message = f"{request.path[:200]} takes {', '.join(allowed)}, not {request.method[:20]}."
            raise Refusal(Code.METHOD_NOT_ALLOWED, message, allow=allowed)
        said = self.unserved.get(request.path)
        raise Refusal(
            Code.UNKNOWN_ROUTE,
            said or f"There is no {request.path[:200]} here. The base URL for clients is {self._base_for(request)}.",
        )

    def _base_for(self, request: web.Request) -> str:
        bare = any(part in request.path for part in self.bare_paths)
        return self.base_url().removesuffix("/v1") if bare else self.base_url()

    def _check_body(self, request: web.Request) -> None:
        coding = request.headers.get(hdrs.CONTENT_ENCODING)
        if coding is not None and coding.strip().lower() not in DECODED:
            raise unsupported_encoding()
        length = request.content_length
        if length is not None and length > self.max_body_bytes:
            raise too_large(self.max_body_bytes)


def _wants_page(request: web.Request) -> bool:
    return request.method == hdrs.METH_GET and "text/html" in request.headers.get(hdrs.ACCEPT, "")


def unsupported_encoding() -> Refusal:
    return Refusal(
        Code.UNSUPPORTED_ENCODING,
        "The body's Content-Encoding is not understood. Send it uncompressed, or as gzip or deflate.",
    )


def route_template(request: web.Request) -> str | None:
    """The pattern that matched (`/v1/models/{id}`), None for an unknown path. Never text from the request."""
    resource = request.match_info.route.resource
    return None if resource is None else resource.canonical


def too_large(limit: int) -> Refusal:
    return Refusal(Code.REQUEST_TOO_LARGE, f"The body is larger than {limit:,} bytes. Send less text in one request.")


def _authority(request: web.Request) -> str | None:
    """The authority of a request line that holds a whole URL, as proxies send it."""
    raw = request.raw_path
    if not raw.startswith(("http://", "https://")):
        return None
    return raw.split("://", 1)[1].split("/", 1)[0]
