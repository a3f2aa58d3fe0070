"""One question asked through every API of profile `hub`: path and body in, text, reason and error out."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

PATHS: Mapping[str, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "ollama chat": "/api/chat",
    "ollama generate": "/api/generate",
}
LIMITS: Mapping[str, str] = {
    "chat": "max_tokens",
    "completions": "max_tokens",
    "responses": "max_output_tokens",
    "messages": "max_tokens",
}


def question(api: str, content: str = "hi", *, limit: int | None = None, **fields: Any) -> dict[str, Any]:
    """A body that asks for at most `limit` tokens, with further fields of that API."""
    turns = [{"role": "user", "content": content}]
    asked: dict[str, Any] = {"model": "default", "stream": False}
    match api:
        case "chat" | "messages" | "ollama chat":
            asked["messages"] = turns
        case "responses":
            asked["input"] = turns
        case _:
            asked["prompt"] = content
    if api in LIMITS:
        asked[LIMITS[api]] = limit or 500
    elif limit is not None:
        asked["options"] = {"num_predict": limit}
    return {**asked, **fields}


@dataclass(frozen=True)
class Reply:
    """One HTTP answer."""

    api: str
    status: int
    content_type: str
    body: bytes

    @property
    def message(self) -> str:
        """An error's sentence, in whatever shape it came."""
        error = json.loads(self.body)["error"]
        return str(error if isinstance(error, str) else error["message"])

    @property
    def text(self) -> str:
        """The answer's text, of a document or joined from a stream."""
        if self.content_type == "application/json":
            return "".join(_texts(self.api, json.loads(self.body)))
        return "".join(piece for part in self.parts for piece in _pieces(self.api, part))

    @property
    def parts(self) -> list[Any]:
        """What a stream is made of, without `[DONE]`. Each line must be UTF-8 and JSON by itself."""
        lines = [line.decode() for line in self.body.split(b"\n")]
        data = (
            lines
            if self.content_type == "application/x-ndjson"
            else [line[6:] for line in lines if line[:6] == "data: "]
        )
        return [json.loads(line) for line in data if line and line != "[DONE]"]


async def ask_api(http: aiohttp.ClientSession, api: str, body: Mapping[str, Any]) -> Reply:
    async with http.post(PATHS[api], json=body) as response:
        return Reply(api, response.status, response.content_type, await response.read())


def _texts(api: str, document: Any) -> list[str]:
    match api:
        case "chat":
            return [document["choices"][0]["message"]["content"] or ""]
        case "completions":
            return [document["choices"][0]["text"]]
        case "messages":
            return [block.get("text", "") for block in document["content"]]
        case "responses":
            parts = [part for item in document["output"] for part in item.get("content") or []]
            return [part["text"] for part in parts if part["type"] == "output_text"]
        case "ollama chat":
            return [document["message"]["content"]]
        case _:
            return [document["response"]]


def _pieces(api: str, part: Any) -> list[str]:
    match api:
        case "chat":
            return [choice["delta"].get("content") or "" for choice in part["choices"]]
        case "messages":
            return [part["delta"].get("text", "")] if part["type"] == "content_block_delta" else []
        case "responses":
            return [part["delta"]] if part["type"] == "response.output_text.delta" else []
        case _:
            return _texts(api, part) if part.get("choices", True) else []
