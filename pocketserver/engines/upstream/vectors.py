"""Embeddings as other servers write them: numbers, or base64, in any order."""

import base64
import struct
from typing import Any

import msgspec

from pocketserver.chat import Embeddings
from pocketserver.engines.upstream import faults


class _Vector(msgspec.Struct):
    embedding: Any
    index: int | None = 0


class _VectorUsage(msgspec.Struct):
    prompt_tokens: int | None = 0


class _Vectors(msgspec.Struct):
    data: list[_Vector]
    usage: _VectorUsage | None = None


def embeddings(body: bytes, inputs: int) -> Embeddings:
    """The vectors of so many inputs. Raises UpstreamFault for what is no answer to them."""
    try:
        found = msgspec.json.decode(body, type=_Vectors)
        vectors = [_floats(entry.embedding) for entry in sorted(found.data, key=lambda entry: entry.index or 0)]
    except (msgspec.DecodeError, ValueError, struct.error, RecursionError):
        raise faults.unreadable(body) from None
    if len(vectors) != inputs:
        raise faults.broken()
    usage = found.usage or _VectorUsage()
    return Embeddings(vectors=tuple(vectors), prompt_tokens=usage.prompt_tokens or 0)


def _floats(vector: Any) -> tuple[float, ...]:
    """Numbers, or base64 of little-endian float32, from upstreams that send that unasked."""
    if isinstance(vector, str):
        data = base64.b64decode(vector, validate=True)
        return struct.unpack(f"<{len(data) // 4}f", data)
    return tuple(msgspec.convert(vector, list[float]))
