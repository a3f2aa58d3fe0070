"""What passes between the server and the model process: typed msgpack values, each with its length in front."""

from enum import StrEnum
from typing import Protocol, TypeAlias

import msgspec

from pocketserver.chat import EmbeddingInput, Event, Explanation, GenerationRequest
from pocketserver.engines.llama.runtime import Drafts, FlashAttention, KvType, Runtime
from pocketserver.engines.llama.tuning import TuningRecord

MAX_FRAME_BYTES = 64 * 1024 * 1024  # a request body is a few MiB; scores of a long answer are the largest thing sent
LENGTH_BYTES = 4
CLOSE_SECONDS = 4.0
"""How long a worker may take to bring its conversations to the disk before it ends."""
SCHEMA_PARAM = "response_format.json_schema.schema"
"""The field that a constraint's refusal names unless the wire API says another."""


class FrameError(Exception):
    """The other side sent something that is no frame; the connection cannot be used any more."""


class _Frame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class Caching(_Frame, frozen=True, kw_only=True):
    """What may be kept of conversations that are not running. Nothing is kept on disk without `disk_bytes`.

    `model` and `model_parts` name the model and its files. After `rest_seconds` without a request the conversation in
    the context goes to the disk.
    """

    memory_bytes: int = 0
    disk_bytes: int = 0
    rest_seconds: float = 0.5
    model: str = ""
    model_parts: tuple[str, ...] = ()


class Load(_Frame, frozen=True, kw_only=True, tag="load"):
    """Load a model. `gpu_layers` -1 means all. `template` replaces the model's own chat template.

    `extra_buffers` lets llama.cpp repack weights (design, safe mode). `threads` None is one for each physical core,
    `threads_batch` (for prompts) None is the same as `threads`.
    `examined` says that the template came through its examination before, so that it need not be looked at alone.
    `abort_in_probe_with_extra_buffers` is for tests: it makes the probe end the process as a bad CPU would.
    """

    path: str
    context_size: int
    threads: int | None = None
    threads_batch: int | None = None
    kv_type: KvType = KvType.F16
    flash_attention: FlashAttention = FlashAttention.AUTO
    gpu_layers: int = -1
    extra_buffers: bool = True
    micro_batch: int = 256
    blas: bool = False
    drafts: Drafts = Drafts()
    template: str | None = None
    state_folder: str | None = None
    cache: Caching = Caching()
    examined: bool = False
    abort_in_probe_with_extra_buffers: bool = False


class Tune(_Frame, frozen=True, kw_only=True, tag="tune"):
    """Load a model only to measure it, in about so many seconds."""

    load: Load
    budget_seconds: float


class Examine(_Frame, frozen=True, kw_only=True, tag="examine"):
    """Find out what a model's template and vocabulary offer, without its weights; then `Count` may be asked.

    `context_size` is what a counted prompt must fit into.
    """

    path: str
    context_size: int
    template: str | None = None
    state_folder: str | None = None


class Generate(_Frame, frozen=True, kw_only=True, tag="generate"):
    request: GenerationRequest


class Embed(_Frame, frozen=True, kw_only=True, tag="embed"):
    """Make a vector of each input; one that is too long is cut with `truncate`, else the whole is refused."""

    id: str
    inputs: tuple[EmbeddingInput, ...]
    truncate: bool


class Count(_Frame, frozen=True, kw_only=True, tag="count"):
    """Render and count, beside a running generation. `ticket` pairs the answer with the question."""

    ticket: int
    request: GenerationRequest


class Explain(_Frame, frozen=True, kw_only=True, tag="explain"):
    """Render, count and check, beside a running generation; answered by `Explained`."""

    ticket: int
    request: GenerationRequest


class Cancel(_Frame, frozen=True, kw_only=True, tag="cancel"):
    id: str


class Close(_Frame, frozen=True, kw_only=True, tag="close"):
    """Bring what is worth keeping to the disk, and end. A running answer is cancelled."""


ToWorker: TypeAlias = Load | Tune | Examine | Generate | Embed | Count | Explain | Cancel | Close


class Hello(_Frame, frozen=True, kw_only=True, tag="hello"):
    """The first frame of a worker: which library it runs, and what that can do."""

    version: str
    build: str
    gpu_offload: bool
    metal: bool
    pid: int


class Capable(_Frame, frozen=True, kw_only=True, tag="capable"):
    """What a template and a vocabulary offer; see `Capabilities`."""

    has_template: bool
    tools: bool
    thinking: bool
    insert: bool
    template_problem: str | None = None


class LoadProgress(_Frame, frozen=True, kw_only=True, tag="load_progress"):
    fraction: float


class Examining(_Frame, frozen=True, kw_only=True, tag="examining"):
    """The chat template is looked at, which may hang in a stranger's code; the next frame says that it did not."""


class Probing(_Frame, frozen=True, kw_only=True, tag="probing"):
    """The weights are there and the first decode begins, in which a processor that lies about itself crashes."""


class Measured(_Frame, frozen=True, kw_only=True, tag="measured"):
    """Measuring has begun or has come so far."""

    fraction: float


class Tuned(_Frame, frozen=True, kw_only=True, tag="tuned"):
    record: TuningRecord


class Loaded(_Frame, frozen=True, kw_only=True, tag="loaded"):
    context_size: int
    gpu_layers: int
    runtime: Runtime
    drafts: Drafts
    supports_tools: bool
    template_problem: str | None = None
    seconds: float


class LoadFailed(_Frame, frozen=True, kw_only=True, tag="load_failed"):
    code: str
    message: str


class Stage(StrEnum):
    """What the worker does before it accepts a request; each stage has a deadline, kept by the server."""

    RENDER = "render"
    CONSTRAINT = "constraint"


class Preparing(_Frame, frozen=True, kw_only=True, tag="preparing"):
    id: str
    stage: Stage


class Accepted(_Frame, frozen=True, kw_only=True, tag="accepted"):
    id: str
    prompt_tokens: int
    cached_tokens: int


class PromptProgress(_Frame, frozen=True, kw_only=True, tag="prompt_progress"):
    """So many prompt tokens are in the context now."""

    id: str
    tokens: int


class Events(_Frame, frozen=True, kw_only=True, tag="events"):
    id: str
    batch: tuple[Event, ...]


class Embedded(_Frame, frozen=True, kw_only=True, tag="embedded"):
    """The vector of the next input, as little-endian 32-bit floats, and how many tokens were read for it."""

    id: str
    vector: bytes
    tokens: int
    truncated: bool


class Refused(_Frame, frozen=True, kw_only=True, tag="refused"):
    """A request (`id`) or a count (`ticket`) that is not answered; may also come after some events."""

    code: str
    message: str
    id: str | None = None
    ticket: int | None = None
    param: str | None = None
    details: dict[str, int] = {}


class Ended(_Frame, frozen=True, kw_only=True, tag="ended"):
    """The last frame of each Generate and Embed, whatever became of it: the model is free again."""

    id: str


class Counted(_Frame, frozen=True, kw_only=True, tag="counted"):
    ticket: int
    tokens: int


class Explained(_Frame, frozen=True, kw_only=True, tag="explained"):
    ticket: int
    explanation: Explanation


FromWorker: TypeAlias = (
    Hello
    | Capable
    | LoadProgress
    | Examining
    | Probing
    | Measured
    | Tuned
    | Loaded
    | LoadFailed
    | Preparing
    | Accepted
    | PromptProgress
    | Events
    | Embedded
    | Refused
    | Ended
    | Counted
    | Explained
)


class _Reads(Protocol):
    def read(self, size: int, /) -> bytes: ...


def encode(frame: ToWorker | FromWorker) -> bytes:
    """The frame with its length in front. Raises FrameError for what msgpack cannot carry (depth, huge integers)."""
    try:
        body = msgspec.msgpack.encode(frame)
    except (RecursionError, OverflowError, TypeError, ValueError) as error:
        raise FrameError(str(error)) from error
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {len(body)} bytes")
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def body_length(head: bytes) -> int:
    """How many bytes follow. Raises FrameError when that is more than any frame has."""
    length = int.from_bytes(head, "big")
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {length} bytes")
    return length


_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


def decode_from_worker(body: bytes) -> FromWorker:
    try:
        return _from_worker.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FrameError(str(error)) from error


def read_to_worker(file: _Reads) -> ToWorker | None:
    """The next frame from a blocking buffered file, or None at its end, also one in the middle of a frame."""
    head = file.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    length = body_length(head)
    body = file.read(length)
    if len(body) < length:
        return None
    try:
        return _to_worker.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FrameError(str(error)) from error
