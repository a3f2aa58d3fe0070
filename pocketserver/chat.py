"""The vocabulary between a wire API and an engine: what is asked for, and everything that can happen in an answer.

Nothing here knows HTTP, a profile or a model file. The same types cross the pipe to the model process as msgpack.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

JsonValue: TypeAlias = Any
"""Any JSON document. Its shape is somebody else's business (a tool's schema, a template's argument)."""


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class _Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A value that is compared by its fields and never changed."""


class ToolCall(_Value, frozen=True, kw_only=True):
    """A call that the model made. `arguments` is JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str


class Message(_Value, frozen=True, kw_only=True):
    """One turn. Content parts are already joined; `reasoning` is what the model thought before an earlier answer."""

    role: Role
    content: str = ""
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None


class Tool(_Value, frozen=True, kw_only=True):
    """A function that the model may call. `parameters` is a JSON Schema object; absent parameters are an empty one."""

    name: str
    description: str = ""
    parameters: Mapping[str, JsonValue] = msgspec.field(default_factory=dict)
    strict: bool = False


class ToolMode(StrEnum):
    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


class ToolChoice(_Value, frozen=True, kw_only=True):
    """How freely the model may call. With `name`, exactly that function must be called."""

    mode: ToolMode = ToolMode.AUTO
    name: str | None = None
    parallel: bool = True


class Sampling(_Value, frozen=True, kw_only=True):
    """How the next token is drawn. `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 switch a filter off.

    Penalties follow the OpenAI reference (frequency and presence, -2..2) and llama.cpp (repeat, 1 is off).
    `seed` None draws a fresh one for each request.
    """

    temperature: float = 0.7
    top_p: float = 0.95
    top_k: int = 0
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None


class AnyJsonObject(_Value, frozen=True, kw_only=True, tag="any_json_object"):
    """The answer is one JSON object of any shape."""


class JsonSchema(_Value, frozen=True, kw_only=True, tag="json_schema"):
    """The answer is one JSON value that validates against `schema` (draft 2020-12)."""

    schema: Mapping[str, JsonValue] | bool
    strict: bool = False


class Grammar(_Value, frozen=True, kw_only=True, tag="grammar"):
    """The answer follows a grammar; `syntax` is `lark` or `regex`, as llguidance reads them."""

    syntax: str
    definition: str


Constraint: TypeAlias = AnyJsonObject | JsonSchema | Grammar


class GenerationRequest(_Value, frozen=True, kw_only=True):
    """One answer to be generated.

    `id` names the request in logs and frames. `model` is the id of an installed model, already resolved from any alias.
    `stop` strings are not part of the answer. `top_logprobs` None means no scores; 0 means the chosen token's alone.
    `template_arguments` are extra variables for the chat template; without `reasoning_effort` the model decides, and
    `none` switches thinking off. `reasoning_budget` is the most tokens that the model may think; then it must answer.
    `prompt` is raw text without a template (completions); exactly one of `messages` and `prompt` is given. With
    `prompt_tokens` it is tokens already, and the text stays empty. `suffix` is what follows behind the answer, for
    models that can fill in a middle. With `echo` the answer begins with the raw prompt's text, and with
    `top_logprobs` too, that text's tokens are scored. `max_tokens` 0 reads the prompt and writes nothing.
    `whole` says that nobody reads the answer before its end, so that an engine may say much in one event.
    `keep_alive` is how long the model stays loaded after this answer, in seconds: None is the server's own habit,
    negative is for ever, 0 unloads at once. `via` names the servers that the request has passed on its way here.
    """

    id: str
    model: str
    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    prompt_tokens: tuple[int, ...] = ()
    suffix: str = ""
    echo: bool = False
    sampling: Sampling = Sampling()
    max_tokens: int = 1024
    stop: tuple[str, ...] = ()
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    constraint: Constraint | None = None
    top_logprobs: int | None = None
    reasoning_effort: str | None = None
    reasoning_budget: int | None = None
    template_arguments: Mapping[str, JsonValue] = msgspec.field(default_factory=dict)
    whole: bool = False
    keep_alive: float | None = None
    via: tuple[str, ...] = ()


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


class Usage(_Value, frozen=True, kw_only=True):
    """Token counts of one answer. `completion_tokens` includes `reasoning_tokens`."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class Timings(_Value, frozen=True, kw_only=True):
    """Measured times of one answer, in seconds. Generation time runs from the first token to the last."""

    prompt_seconds: float = 0.0
    generation_seconds: float = 0.0
    load_seconds: float = 0.0


class TokenScore(_Value, frozen=True, kw_only=True):
    """A token's text, its natural log probability, and the most probable tokens at its place.

    `is_first` marks a token with nothing before it: it has no probability, and `logprob` says nothing.
    """

    token: str
    logprob: float
    bytes: bytes
    top: tuple["TokenScore", ...] = ()
    is_first: bool = False


class TextDelta(_Value, frozen=True, kw_only=True, tag="text"):
    """More of the answer: whole characters, never empty, no part of a stop string. `tokens` is how many made it.

    The text of an echoed prompt was made by none.
    """

    text: str
    tokens: int = 1
    scores: tuple[TokenScore, ...] = ()


class ReasoningDelta(_Value, frozen=True, kw_only=True, tag="reasoning"):
    """More of the model's thinking, without its marks."""

    text: str
    tokens: int = 1


class ToolCallStarted(_Value, frozen=True, kw_only=True, tag="call_started"):
    """A call's name is known. `index` counts the calls of this answer from 0."""

    index: int
    id: str
    name: str


class ToolCallDelta(_Value, frozen=True, kw_only=True, tag="call"):
    """More of a call's arguments: a piece of JSON text. All pieces of an index together are one JSON object."""

    index: int
    arguments: str
    tokens: int = 1


class Finished(_Value, frozen=True, kw_only=True, tag="finished"):
    """The last event of an answer that came to its end. A broken answer ends in a Refusal instead."""

    reason: FinishReason
    usage: Usage
    timings: Timings = Timings()
    stop_sequence: str | None = None


Event: TypeAlias = TextDelta | ReasoningDelta | ToolCallStarted | ToolCallDelta | Finished


class PromptToken(_Value, frozen=True, kw_only=True):
    """One token of a prompt. Half a character has no text of its own and shows as U+FFFD."""

    id: int
    text: str


class Problem(_Value, frozen=True, kw_only=True):
    """Why a request would be refused: an error code's word, the sentence, and the field at fault."""

    code: str
    message: str
    param: str | None = None


class Explanation(_Value, frozen=True, kw_only=True):
    """What a model would read for a request, found out without generating.

    `tokens` are all of `prompt`, which is their text with control tokens spelt out; both are empty when the prompt
    cannot be made or is hopelessly long. `prompt_tokens` counts them (at least so many then), `cached_tokens` of them
    would need no reading at this moment. `context_size` holds prompt and answer together. `usable_tools` are the names
    of tools that the answer may call. A request with `problems` is refused.
    """

    prompt: str = ""
    tokens: tuple[PromptToken, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    context_size: int = 0
    usable_tools: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


EmbeddingInput: TypeAlias = str | tuple[int, ...]
"""A text, or the tokens that the model's own tokenizer makes of one."""


class Embeddings(_Value, frozen=True, kw_only=True):
    """One vector of length 1 for each input, in their order.

    `prompt_tokens` counts what was read of all of them. `truncated` holds the indices of inputs that were cut.
    """

    vectors: tuple[tuple[float, ...], ...]
    prompt_tokens: int
    truncated: tuple[int, ...] = ()


class ModelInfo(_Value, frozen=True, kw_only=True):
    """One model as lists show it. `context_size` is what it is served with, or trained with while not loaded."""

    id: str
    loaded: bool = False
    created: int = 0
    size_bytes: int = 0
    quantization: str | None = None
    architecture: str | None = None
    parameters: int | None = None
    context_size: int | None = None


class LoadedModel(_Value, frozen=True, kw_only=True):
    """A model in memory. `expires_at` is the Unix time at which it is unloaded unless it is used; None is never."""

    id: str
    size_bytes: int = 0
    context_size: int = 0
    expires_at: float | None = None


class EngineState(StrEnum):
    NO_MODEL = "no_model"
    LOADING = "loading"
    READY = "ready"
    STUCK = "stuck"


class EngineStatus(_Value, frozen=True, kw_only=True):
    """What an engine knows of itself at this moment, without asking the model.

    `load_progress` runs from 0 to 1 while loading. `metal` is true only when Apple's GPU is in use; `gpu_layers` counts
    the layers that are really offloaded. `safe_mode` means the model process runs without repacked weights because it
    crashed with them. `tuning_progress` runs from 0 to 1 while an engine measures how a model runs best; `runtime` is
    how it runs, for people to read. `problem` is why no model is loaded, as a sentence. `resident_bytes` includes the
    model process. `loads_on_request` means that a request need not wait until a model is ready: asking loads it.
    Without `counts_tokens` the engine cannot say how long a prompt is before it has answered. `problem_passes` says
    that asking again later may help. An engine that is the door to a model elsewhere is `connected` while it reaches
    it, and `closed` is why its owner keeps us away; `waits_elsewhere` means that our request stands in a line there.
    """

    state: EngineState
    model: str | None = None
    context_size: int | None = None
    load_progress: float | None = None
    metal: bool = False
    gpu_layers: int = 0
    safe_mode: bool = False
    supports_tools: bool = False
    problem: str | None = None
    problem_code: str | None = None
    tuning_progress: float | None = None
    runtime: str | None = None
    worker_pid: int | None = None
    worker_restarts: int = 0
    device: Mapping[str, JsonValue] | None = None
    loads_on_request: bool = False
    counts_tokens: bool = True
    problem_passes: bool = False
    connected: bool = True
    closed: str | None = None
    waits_elsewhere: bool = False
