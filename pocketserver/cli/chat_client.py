"""A small client of the OpenAI chat API: which models there are, and one streamed answer. Nothing is printed here."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from pocketserver.errors import UsageError

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 600.0
"""How long a server may say nothing: a long prompt on a phone takes minutes."""
MAX_LINE_BYTES = 4 << 20
_MOST_BODY_BYTES = 8 << 20
_MOST_SENTENCE_CHARACTERS = 500
_BUSY_STATUSES = frozenset({429, 503, 529})
_CLOSED_STATUSES = frozenset({401, 403})

Chat = Sequence[Mapping[str, str]]


class ChatFault(Exception):  # noqa: N818 - it is what went wrong, in a sentence for the person
    """Why there is no answer, or no more of it."""


class WrongKey(ChatFault):
    """The server wants another key, or one at all."""


class Gone(ChatFault):
    """Nothing answers there (any more)."""


class Busy(ChatFault):
    """The server will answer later; `retry_after` is in seconds, None where it does not say."""

    def __init__(self, sentence: str, retry_after: float | None) -> None:
        super().__init__(sentence)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of an answer's text, or of the thinking before it."""

    text: str
    reasoning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """A whole answer's end; `completion_tokens` is None where the server does not count."""

    reason: str | None = None
    completion_tokens: int | None = None


def base_url_of(text: str) -> str:
    """An address as people write it, as a base URL: a scheme and `/v1` are added where they lack.

    Raises UsageError for what is none, and for one with a password in it.
    """
    full = text.strip() if "://" in text else f"http://{text.strip()}"
    try:
        parts = urlsplit(full)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable or parts.username is not None:
        raise UsageError(f"{text[:100]!a} is no server's address. Write it like http://192.168.1.20:8080/v1.")
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path if path.endswith('/v1') else path + '/v1'}"


class ChatClient:
    """One server. Made by `chat_client`; every method raises ChatFault."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str, key: str | None) -> None:
        self._session = session
        self.base_url = base_url
        self.key = key

    async def models(self) -> list[str]:
        """The ids of its models, the loaded one first."""
        with _explained(self.base_url):
            async with self._session.get(f"{self.base_url}/models", headers=self._headers()) as response:
                await _check(response, self.base_url)
                listed = json.loads(await _body(response))["data"]
        loaded_first = sorted(listed, key=lambda model: not model.get("loaded", False))
        return [str(model["id"]) for model in loaded_first]

    @asynccontextmanager
    async def answer(self, model: str, messages: Chat) -> AsyncIterator[AsyncIterator[Piece | End]]:
        """The answer, piece by piece; leaving the block hangs up, which ends the server's work on it."""
        body = {
            "model": model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        url = f"{self.base_url}/chat/completions"
        with _explained(self.base_url):
            response = await self._session.post(url, json=body, headers=self._headers())
        try:
            with _explained(self.base_url):
                await _check(response, self.base_url)
            async with aclosing(_pieces(response, self.base_url)) as pieces:
                yield pieces
        finally:
            response.close()

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


@asynccontextmanager
async def chat_client(base_url: str, key: str | None) -> AsyncIterator[ChatClient]:
    """A client for this base URL."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
    connector = aiohttp.TCPConnector(force_close=True)  # an idle connection says nothing of a server that is gone
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, read_bufsize=MAX_LINE_BYTES) as session:
        yield ChatClient(session, base_url, key)


async def _pieces(response: aiohttp.ClientResponse, base_url: str) -> AsyncGenerator[Piece | End, None]:
    """What a stream says. Raises ChatFault when it breaks off."""
    reason: str | None = None
    tokens: int | None = None
    whole = False
    with _explained(base_url):
        async for chunk in _chunks(response):
            _raise_error(chunk)
            tokens = _completion_tokens(chunk, tokens)
            for choice in _choices(chunk):
                for piece in _text(choice.get("delta") or choice.get("message") or {}):
                    yield piece
                reason = choice.get("finish_reason") or reason
            whole = True
    if not whole or reason is None:
        raise Gone(f"The connection to {base_url} ended before the answer did.")
    yield End(reason=reason, completion_tokens=tokens)


async def _chunks(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, object]]:
    """The documents of an event stream; of a server that does not stream, its only one."""
    if response.content_type == "application/json":
        yield json.loads(await _body(response))
        return
    async for line in response.content:
        data = line.removeprefix(b"data:").strip()
        if line.startswith(b"data:") and data and data != b"[DONE]":
            yield json.loads(data)


def _choices(chunk: Mapping[str, object]) -> Sequence[dict[str, Any]]:
    found = chunk.get("choices")
    return found if isinstance(found, list) else ()


def _text(delta: Mapping[str, object]) -> Iterator[Piece]:
    thought = delta.get("reasoning_content") or delta.get("reasoning")
    if isinstance(thought, str) and thought:
        yield Piece(thought, reasoning=True)
    content = delta.get("content")
    if isinstance(content, str) and content:
        yield Piece(content)


def _completion_tokens(chunk: Mapping[str, object], before: int | None) -> int | None:
    usage = chunk.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) else before


def _raise_error(chunk: object) -> None:
    if not isinstance(chunk, dict) or not chunk.get("error"):
        return
    sentence, _ = _said(chunk)
    raise ChatFault(f"The answer broke off: {sentence}")


async def _check(response: aiohttp.ClientResponse, base_url: str) -> None:
    """Raises the fault that a status other than 200 means."""
    if response.status == 200:
        return
    sentence, code = _said(await response.content.read(65536))
    if response.status in _CLOSED_STATUSES and code != "model_not_found":
        raise WrongKey(f"{base_url} does not let us in: {sentence}")
    if response.status in _BUSY_STATUSES and _passes(response, code):
        raise Busy(sentence, _retry_after(response))
    if response.status == 404 and code is None:
        raise ChatFault(f"{base_url} does not speak the OpenAI chat API ({sentence}). Check the address.")
    raise ChatFault(f"{base_url} refuses: {sentence}")


def _passes(response: aiohttp.ClientResponse, code: str | None) -> bool:
    """Whether asking again may help. Our servers say when; others are believed by their status."""
    if response.headers.get("x-should-retry") == "false" or code in {"too_many_attempts", "insufficient_quota"}:
        return False
    return not (code == "model_not_loaded" and _retry_after(response) is None)


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    try:
        return max(0.0, float(response.headers["Retry-After"]))
    except (KeyError, ValueError):
        return None


def _said(body: object) -> tuple[str, str | None]:
    """An error's sentence and code, in whichever of the usual shapes it comes."""
    try:
        found = json.loads(body) if isinstance(body, bytes) else body
    except ValueError:
        return repr(body)[:200], None
    inner = found.get("error", found) if isinstance(found, dict) else found
    if not isinstance(inner, dict):
        return str(inner)[:_MOST_SENTENCE_CHARACTERS], None
    code = inner.get("code") or inner.get("type")
    return str(inner.get("message", inner))[:_MOST_SENTENCE_CHARACTERS], code if isinstance(code, str) else None


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """A whole document, unless it is absurdly large."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _MOST_BODY_BYTES:
            raise ValueError("too much")
    return bytes(body)


@contextmanager
def _explained(base_url: str) -> Iterator[None]:
    """Turns the HTTP library's exceptions, and documents of another shape, into faults with a sentence."""
    try:
        yield
    except aiohttp.InvalidURL as error:
        raise ChatFault(f"{base_url} is no server's address.") from error
    except aiohttp.ClientConnectorError as error:
        raise Gone(f"Nothing answers at {base_url} ({error.strerror or error}). Is the server running?") from error
    except TimeoutError as error:
        raise Gone(f"{base_url} does not answer. Is this device in the same network?") from error
    except (aiohttp.ClientError, ConnectionError) as error:
        raise Gone(f"The connection to {base_url} broke. The server may have gone.") from error
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise ChatFault(f"{base_url} does not speak the OpenAI chat API ({error!r}). Check the address.") from error
