"""Asking a server as the tables of this folder need it: one body in, status and document out."""

import io
import json
from dataclasses import dataclass
from typing import Any

import aiohttp

HI: dict[str, Any] = {"model": "default", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
PATH = "/v1/chat/completions"


@dataclass(frozen=True)
class Answered:
    """One HTTP answer. `document` is the JSON body, `body` the bytes."""

    status: int
    body: bytes
    headers: Any

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.document["error"]

    @property
    def text(self) -> str:
        return str(self.document["choices"][0]["message"]["content"])

    @property
    def usage(self) -> dict[str, Any]:
        found: dict[str, Any] = self.document["usage"]
        return found

    @property
    def finish_reason(self) -> str:
        return str(self.document["choices"][0]["finish_reason"])

    @property
    def chunks(self) -> list[Any]:
        """The data of each SSE message; `[DONE]` stays text."""
        parts = [part.removeprefix(b"data: ") for part in self.body.split(b"\n\n") if part]
        return ["[DONE]" if part == b"[DONE]" else json.loads(part) for part in parts]


async def ask(http: aiohttp.ClientSession, fields: dict[str, Any] | None = None, **more: Any) -> Answered:
    """A chat with fields over those of `HI`."""
    return await ask_raw(http, json.dumps({**HI, **(fields or {}), **more}).encode())


async def ask_raw(http: aiohttp.ClientSession, body: bytes) -> Answered:
    async with http.post(PATH, data=io.BytesIO(body), headers={"Content-Type": "application/json"}) as response:
        return Answered(response.status, await response.read(), response.headers)
