"""One streamed chat answer with the times that belong to it. What is measured with it is measures.py's business."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import aiohttp

from pocketserver.errors import StartupError

REQUEST_LIMIT_SECONDS = 180.0
BUSY_LIMIT_SECONDS = 60.0
BUSY_PAUSE_SECONDS = 0.01
MAX_LINE_BYTES = 1 << 20
MAX_ERROR_BYTES = 4096

_BUSY_STATUSES = frozenset({429, 503, 529})
_CLOSED_STATUSES = frozenset({401, 403})

Chat = Sequence[Mapping[str, str]]


class UnmeasurableError(Exception):
    """This server cannot be measured in this one respect; the text says why. Other figures go on."""


class BusyError(Exception):
    """The server answers somebody else at the moment (429, 503, 529)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole streamed answer. Seconds count from just before the request is sent.

    `prompt_tokens` and `cached_tokens` are None where the server sends no usage; `completion_tokens` then counts the
    pieces of text that came.
    """

    text: str
    first_text_seconds: float
    last_text_seconds: float
    total_seconds: float
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int
    text_seconds: tuple[float, ...] = ()
    """When each piece of text came."""

    @property
    def tokens_per_second(self) -> float:
        """The rate behind the first token. Raises UnmeasurableError when too few tokens came."""
        elapsed = self.last_text_seconds - self.first_text_seconds
        if self.completion_tokens < 2 or elapsed <= 0:
            raise UnmeasurableError(f"the answer has only {self.completion_tokens} tokens")
        return (self.completion_tokens - 1) / elapsed


class ChatClient:
    """Sends chat requests to one server, one at a time. Made by `chat_client`."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str, model: str) -> None:
        self._session = session
        self.base_url = base_url
        self.model = model

    async def answer(self, chat: Chat, max_tokens: int, **fields: object) -> Answer:
        """The streamed answer; waits while the server is busy, and times only the request that was let in.

        `fields` go into the body as they are. Raises UnmeasurableError when the server refuses such a request or breaks
        off, StartupError when it is gone, closed to us, or busy for too long.
        """
        limit = time.monotonic() + BUSY_LIMIT_SECONDS
        while True:
            try:
                return await self._once(self._body(chat, max_tokens, fields))
            except BusyError as error:
                if time.monotonic() > limit:
                    raise StartupError(f"{self.base_url} stays busy ({error}). Stop its other clients.") from error
            await asyncio.sleep(BUSY_PAUSE_SECONDS)

    async def hang_up(self, chat: Chat, after_seconds: float) -> bool:
        """Send a request and disconnect after that time; whether no text had come yet."""
        try:
            async with asyncio.timeout(after_seconds):
                await self.answer(chat, 1)
        except TimeoutError:
            return True
        return False

    def _body(self, chat: Chat, max_tokens: int, fields: Mapping[str, object]) -> dict[str, object]:
        return {
            "model": self.model,
            "messages": list(chat),
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }

    async def _once(self, body: Mapping[str, object]) -> Answer:
        started = time.perf_counter()
        with _explained(self.base_url):
            async with self._session.post(f"{self.base_url}/chat/completions", json=body) as response:
                await _check(response, self.base_url)
                reading = _Reading(started)
                async for line in response.content:
                    reading.take(line)
                return reading.finish()


class _Reading:
    """Collects one answer's lines. A stream without text, or with an error inside, is no measurement."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._pieces: list[str] = []
        self._times: list[float] = []
        self._first = self._last = 0.0
        self._usage: Mapping[str, object] = {}

    def take(self, line: bytes) -> None:
        data = line.removeprefix(b"data:").strip()
        if not line.startswith(b"data:") or data == b"[DONE]":
            return
        chunk = json.loads(data)
        if "error" in chunk:
            raise UnmeasurableError(f"the answer broke off: {_sentence(chunk)}")
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            if text := delta.get("content") or delta.get("reasoning_content"):
                self._text(text)

    def _text(self, text: str) -> None:
        self._last = time.perf_counter()
        self._first = self._first or self._last
        self._pieces.append(text)
        self._times.append(self._last - self._started)

    def finish(self) -> Answer:
        if not self._pieces:
            raise UnmeasurableError("the answer has no text")
        details = self._usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        return Answer(
            text="".join(self._pieces),
            first_text_seconds=self._first - self._started,
            last_text_seconds=self._last - self._started,
            total_seconds=time.perf_counter() - self._started,
            prompt_tokens=_number(self._usage.get("prompt_tokens")),
            cached_tokens=_number(cached),
            completion_tokens=_number(self._usage.get("completion_tokens")) or len(self._pieces),
            text_seconds=tuple(self._times),
        )


@asynccontextmanager
async def chat_client(url: str, *, key: str | None, model: str | None = None) -> AsyncIterator[ChatClient]:
    """A client for the server at `url` (with or without `/v1`) and a model of it: the one named, loaded, or first.

    Raises StartupError when there is no such server, or it does not take the key.
    """
    base_url = url.rstrip("/").removesuffix("/v1") + "/v1"
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    connector = aiohttp.TCPConnector(force_close=True)  # each request pays the same for its connection
    timeout = aiohttp.ClientTimeout(total=REQUEST_LIMIT_SECONDS)
    async with aiohttp.ClientSession(
        connector=connector, headers=headers, timeout=timeout, read_bufsize=MAX_LINE_BYTES
    ) as session:
        yield ChatClient(session, base_url, model or await _served_model(session, base_url))


async def _served_model(session: aiohttp.ClientSession, base_url: str) -> str:
    with _explained(base_url):
        async with session.get(f"{base_url}/models") as response:
            await _check(response, base_url)
            listed = (await response.json()).get("data") or []
    loaded = [model for model in listed if model.get("loaded")]
    if not listed:
        raise StartupError(f"{base_url} lists no model. Name one with --model.")
    return str((loaded or listed)[0]["id"])


async def _check(response: aiohttp.ClientResponse, base_url: str) -> None:
    if response.status == 200:
        return
    said = f"{response.status}: {_sentence(await response.content.read(MAX_ERROR_BYTES))}"
    if response.status in _CLOSED_STATUSES:
        raise StartupError(f"{base_url} does not let us in ({said}). Set POCKETSERVER_API_KEY to a key of that server.")
    if response.status == 404:
        raise StartupError(f"{base_url} does not know what is asked for ({said}). Check the URL and --model.")
    if response.status in _BUSY_STATUSES:
        raise BusyError(said)
    raise UnmeasurableError(f"the server answered {said}")


def _sentence(body: object) -> str:
    """What an error says, in whichever of the usual shapes it comes."""
    try:
        found = json.loads(body) if isinstance(body, bytes) else body
    except ValueError:
        return repr(body)[:200]
    inner = found.get("error", found) if isinstance(found, dict) else found
    message = inner.get("message", inner) if isinstance(inner, dict) else inner
    return str(message)[:300]


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


@contextmanager
def _explained(base_url: str) -> Iterator[None]:
    """Turns the HTTP library's exceptions into ours."""
    try:
        yield
    except aiohttp.InvalidURL as error:
        raise StartupError(f"{base_url} is not a URL. Write it like http://127.0.0.1:8080/v1.") from error
    except aiohttp.ClientConnectorError as error:
        raise StartupError(f"Nothing answers at {base_url}: {error.strerror or error}.") from error
    except aiohttp.ClientError as error:
        raise StartupError(f"The connection to {base_url} broke: {error or 'no more data'}.") from error
    except TimeoutError as error:
        raise UnmeasurableError(f"one answer takes over {REQUEST_LIMIT_SECONDS:.0f} s") from error
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise StartupError(f"{base_url} does not speak the OpenAI chat API: {error!r}.") from error
