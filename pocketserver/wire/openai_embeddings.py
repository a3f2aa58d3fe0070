"""`POST /v1/embeddings`: texts as vectors of length 1, as numbers or in base64.

Source: the OpenAI API reference, "Create embeddings". Both official SDKs ask for base64 by themselves.
"""

import asyncio
import base64
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
from aiohttp import web

from pocketserver.chat import Embeddings, Usage
from pocketserver.errors import Code, Refusal
from pocketserver.wire import json_body
from pocketserver.wire.context import ANSWER, KEY_NAME, ModelAccess, body_of, via_of
from pocketserver.wire.json_body import Warn, invalid
from pocketserver.wire.openai_sampling import shown

MAX_INPUTS = 2048
_WRITTEN_AT_ONCE = 32
"""Vectors that are written before others get their turn on the event loop."""
_NEEDED = "`input` must be a text or a list of texts."
_TOKENS = (
    f"{_NEEDED} This server takes no token ids: send the text itself"
    " (LangChain's OpenAIEmbeddings does with check_embedding_ctx_length=False)."
)

_encode = msgspec.json.Encoder().encode
Write: TypeAlias = Callable[[Sequence[float]], object]


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that are read. `input` is looked at by hand, for its many wrong kinds."""

    input: Any = None
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    stream: Any = None


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request. `model` is the name as the client wrote it, `dimensions` None is the model's size."""

    model: str | None
    inputs: tuple[str, ...]
    in_base64: bool
    dimensions: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingsRoute:
    access: ModelAccess

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/embeddings", self.create)]

    async def create(self, request: web.Request) -> web.Response:
        access, answer = self.access, request[ANSWER]
        asked = parse(await body_of(request, access.client_seconds), warn=answer.warn)
        access.door.check_ready()
        model = answer.model = await access.models.resolve(asked.model, answer)
        found = await access.door.embed(
            asked.inputs, model=model, truncate=False, owner=request.get(KEY_NAME), via=via_of(request)
        )
        answer.usage = Usage(prompt_tokens=found.prompt_tokens, completion_tokens=0)
        body = await document(found, asked, model=access.models.shown(model), extra=answer.shown_warnings)
        return web.Response(body=body, content_type="application/json")


def parse(data: bytes, *, warn: Warn) -> Asked:
    """Read and check a whole body. Raises Refusal with the code and the field at fault."""
    body = json_body.decode(data, Body, required="input")
    asked = Asked(
        model=body.model,
        inputs=_inputs(body.input),
        in_base64=_in_base64(body.encoding_format),
        dimensions=_dimensions(body.dimensions),
    )
    if body.stream:
        warn("stream", "ignored, embeddings are not streamed")
    json_body.tell_unread(data, Body, warn)
    return asked


async def document(found: Embeddings, asked: Asked, *, model: str, extra: dict[str, list[str]]) -> bytes:
    """The answer's bytes. Thousands of vectors are megabytes: others get their turns in between."""
    write = _base64 if asked.in_base64 else tuple
    entries: list[bytes] = []
    for index, vector in enumerate(found.vectors):
        if index % _WRITTEN_AT_ONCE == _WRITTEN_AT_ONCE - 1:
            await asyncio.sleep(0)
        entries.append(_entry(index, _shortened(vector, asked.dimensions), write))
    usage = {"prompt_tokens": found.prompt_tokens, "total_tokens": found.prompt_tokens}
    rest = _encode({"model": model, "usage": usage, **extra})
    return b'{"object":"list","data":[' + b",".join(entries) + b"]," + rest[1:]


def _entry(index: int, vector: Sequence[float], write: Write) -> bytes:
    if not all(map(math.isfinite, vector)):
        raise Refusal(
            Code.GENERATION_FAILED, f"The model computed no usable numbers for input[{index}]. Change the text."
        )
    return _encode({"object": "embedding", "index": index, "embedding": write(vector)})


def _base64(vector: Sequence[float]) -> str:
    """Little-endian 32-bit floats."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _shortened(vector: Sequence[float], dimensions: int | None) -> Sequence[float]:
    """The first numbers, with length 1 again; a vector of zeros stays one."""
    if dimensions is None or dimensions == len(vector):
        return vector
    if dimensions > len(vector):
        raise invalid(
            "dimensions", f"`dimensions` is {shown(dimensions)}; this model's vectors have {len(vector)} numbers."
        )
    kept = vector[:dimensions]
    length = math.hypot(*kept)
    return [value / length for value in kept] if length > 0 else kept


def _inputs(given: object) -> tuple[str, ...]:
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list):
        raise invalid("input", "The field `input` is missing." if given is None else _NEEDED)
    if not 1 <= len(given) <= MAX_INPUTS:
        raise invalid("input", f"`input` has {len(given)} entries. Send 1 to {MAX_INPUTS} texts at a time.")
    if any(_is_token(entry) or (isinstance(entry, list) and any(map(_is_token, entry))) for entry in given):
        raise invalid("input", _TOKENS)
    for index, entry in enumerate(given):
        if not isinstance(entry, str):
            raise invalid("input", f"`input[{index}]` is no text. {_NEEDED}")
        if not entry:
            raise invalid("input", f"`input[{index}]` is empty. Send some text.")
    return tuple(given)


def _is_token(entry: object) -> bool:
    return type(entry) is int


def _in_base64(given: str | None) -> bool:
    if given not in (None, "float", "base64"):
        raise invalid("encoding_format", "Invalid value for `encoding_format`: it must be 'float' or 'base64'.")
    return given == "base64"


def _dimensions(given: int | None) -> int | None:
    if given is not None and given < 1:
        raise invalid("dimensions", f"`dimensions` must be 1 or more, not {shown(given)}.")
    return given
