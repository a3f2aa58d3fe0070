"""`POST /api/create` and `POST /api/pull`: work whose progress is streamed as NDJSON."""

import ipaddress
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Self

import msgspec
from aiohttp import web

from pocketserver.chat import JsonValue
from pocketserver.errors import Code, Refusal
from pocketserver.models.library import CreateSpec, Step, StoredMessage
from pocketserver.wire import ndjson, ollama_fields
from pocketserver.wire.context import ANSWER, body_of
from pocketserver.wire.error_table import ErrorTable
from pocketserver.wire.json_body import invalid
from pocketserver.wire.ollama_documents import encoded
from pocketserver.wire.ollama_models import OllamaModels
from pocketserver.wire.ollama_options import Warn
from pocketserver.wire.ollama_request import decode
from pocketserver.wire.ollama_store import NameBody

_encode = msgspec.json.Encoder().encode
_NO_EFFECT = ("renderer", "parser", "requires", "info")


class PullBody(NameBody, frozen=True):
    stream: bool | None = None
    insecure: bool | None = None


class CreateBody(NameBody, frozen=True, rename={"base": "from"}):
    base: str | None = None
    files: dict[str, str] | None = None
    adapters: dict[str, str] | None = None
    template: str | None = None
    system: str | None = None
    license: str | list[str] | None = None
    parameters: dict[str, Any] | None = None
    messages: list[dict[str, Any]] | None = None
    quantize: str | None = None
    quantization: str | None = None
    modelfile: str | None = None
    renderer: Any = None
    parser: Any = None
    requires: Any = None
    info: Any = None
    stream: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaProgress:
    models: OllamaModels
    errors: ErrorTable

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/api/create", self.create), web.post("/api/pull", self.pull)]

    async def create(self, request: web.Request) -> web.StreamResponse:
        body = decode(await self._body(request), CreateBody)
        spec = create_spec(body, request[ANSWER].warn)
        work = self.models.library.create(spec, local_files=_is_local(request))
        return await self._reported(request, work, streamed=body.stream is not False)

    async def pull(self, request: web.Request) -> web.StreamResponse:
        """Only out of the catalogue: a name that looks like an address is a name that is not there."""
        body = decode(await self._body(request), PullBody)
        name = next((name for name in (body.model, body.name) if name), None)
        if name is None:
            raise Refusal(Code.MALFORMED_REQUEST, "model is required", param="model")
        if body.insecure:
            request[ANSWER].warn("insecure", "ignored")
        return await self._reported(request, self.models.library.pull(name), streamed=body.stream is not False)

    async def _body(self, request: web.Request) -> bytes:
        return await body_of(request, self.models.access.client_seconds)

    async def _reported(
        self, request: web.Request, work: AbstractAsyncContextManager[AsyncIterator[Step]], *, streamed: bool
    ) -> web.StreamResponse:
        """Leaving the block ends the work: a client that goes away takes its pull with it."""
        async with work as steps:
            if streamed:
                return await ndjson.respond(request, _StepLines(steps), on_error=self.errors.envelope)
            last = Step(status="success")
            async for step in steps:
                last = step
            return encoded(_encode(last))


class _StepLines:
    """One line a step."""

    def __init__(self, steps: AsyncIterator[Step]) -> None:
        self._steps = steps

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        return _encode(await anext(self._steps)) + b"\n"


def create_spec(body: CreateBody, warn: Warn) -> CreateSpec:
    """Raises Refusal that names the field at fault."""
    name = ollama_fields.required_name(body.model, body.name)
    _refuse_files(body)
    if not body.base and not body.modelfile:
        raise invalid("from", "neither 'from' or 'files' was specified; a 'modelfile' would do as well")
    for field in _NO_EFFECT:
        if getattr(body, field) is not None:
            warn(field, "ignored")
    return CreateSpec(
        name=name,
        base=body.base or None,
        system=body.system,
        template=body.template,
        parameters=body.parameters or {},
        messages=_messages(body.messages),
        license=(body.license,) if isinstance(body.license, str) else _license(body.license),
        modelfile=body.modelfile or None,
    )


def _refuse_files(body: CreateBody) -> None:
    """No file enters by HTTP, and weights are linked as they are."""
    for path in body.files or {}:
        if ".." in PurePosixPath(path.replace("\\", "/")).parts or path.startswith(("/", "\\")):
            raise invalid("files", "file path must be relative")
    if body.files:
        raise invalid(
            "files", "files: this server takes no uploads; use 'from' with an installed model or a local .gguf file"
        )
    if body.adapters:
        raise invalid("adapters", "adapters: this server runs no adapters; leave them out")
    if body.quantize or body.quantization:
        raise invalid("quantize", "quantize: weights are linked as they are; start from a file that is quantized so")


def _license(given: list[str] | None) -> tuple[str, ...] | None:
    return None if given is None else tuple(given)


def _messages(given: list[dict[str, JsonValue]] | None) -> tuple[StoredMessage, ...] | None:
    if given is None:
        return None
    return tuple(_message(turn, f"messages[{index}]") for index, turn in enumerate(given))


def _message(given: dict[str, JsonValue], place: str) -> StoredMessage:
    content = given.get("content")
    if not isinstance(content, str):
        raise invalid(f"{place}.content", f"{place}.content must be a string")
    match str(given.get("role")).lower():
        case "system" | "user" | "assistant" as role:
            return StoredMessage(role=role, content=content)
        case _:
            raise invalid(f"{place}.role", f"{place}.role must be system, user or assistant")


def _is_local(request: web.Request) -> bool:
    """Whether the caller sits at this machine, and so may name its files."""
    try:
        address = ipaddress.ip_address((request.remote or "").split("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
