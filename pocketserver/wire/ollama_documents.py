"""Whole answers of the Ollama family, as bytes."""

from collections.abc import Mapping

import msgspec
from aiohttp import web

from pocketserver.chat import JsonValue


def document(fields: Mapping[str, JsonValue]) -> web.Response:
    return encoded(msgspec.json.encode(fields))


def encoded(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json", charset="utf-8")


def nothing() -> web.Response:
    """Success without a word: 200 and an empty body."""
    return web.Response()
