"""The simulated engine: scripted or seeded replies of a simulated device, behind the same protocol as a real model."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from pocketserver.chat import (
    EmbeddingInput,
    Embeddings,
    EngineState,
    EngineStatus,
    Explanation,
    GenerationRequest,
    LoadedModel,
    ModelInfo,
    ToolMode,
)
from pocketserver.engines.embeddings import cut_to
from pocketserver.engines.engine import EventStream
from pocketserver.engines.sim import example
from pocketserver.engines.sim.clock import DeviceClock
from pocketserver.engines.sim.device import DEFAULT_MODEL, GENERIC, DevicePreset, SimModel
from pocketserver.engines.sim.embedding import tokens_to_embed, unit_vector
from pocketserver.engines.sim.explaining import explanation, unfit
from pocketserver.engines.sim.loading import SimLoading
from pocketserver.engines.sim.prose import DEFAULT_TOKENS, prose
from pocketserver.engines.sim.rules import NewRule, RawToken, Reply, RuleBook
from pocketserver.engines.sim.script import Script, Spoken, forced_call, last_message, scripted, seed_of, thinking
from pocketserver.engines.sim.state import Device
from pocketserver.engines.sim.stream import Interruption, SimAnswer, SimStream
from pocketserver.engines.sim.tokens import RULE, Tokenizer, prose_of
from pocketserver.errors import Code, Refusal, UsageError

_MOST_REMEMBERED_REPLIES = 256
_MOST_REMEMBERED_TOKENS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions:
    """How the device answers. `tokens_per_second` None means without any delay: time is virtual.

    `reply` is `prose` or `echo`; rules come before both. With a `preset`, its models and rates hold, and `speed` is
    device seconds for each real second, None for virtual time; without one, `model` and `context_size` describe the
    only model.
    """

    model: str = DEFAULT_MODEL
    context_size: int = 8192
    tokens_per_second: float | None = 40.0
    seed: int = 0
    reply: str = "prose"
    reply_tokens: int = DEFAULT_TOKENS
    preset: DevicePreset | None = None
    speed: float | None = 1.0
    loads_on_request: bool = False
    """Whether a request for another model of the device loads it."""
    tokenizers: Mapping[str, Tokenizer] = field(default_factory=dict)
    """By model id; the documented rule counts for the others."""
    keep_alive_seconds: float = -1.0
    """How long a model stays loaded after its last answer, negative for ever; only where requests load models."""

    def device(self) -> Device:
        """The device that these options describe, switched off."""
        if self.preset is not None:
            return Device(self.preset, DeviceClock(self.speed), context_size=self.context_size)
        speed = None if self.tokens_per_second is None else self.speed
        preset = generic(self.model, self.context_size, self.tokens_per_second or 40.0, prompt_factor=1e6)
        return Device(preset, DeviceClock(speed), context_size=self.context_size)


def generic(model: str, context_size: int, tokens_per_second: float, prompt_factor: float) -> DevicePreset:
    """A device that never gets hot, loads at once, and has room for this context."""
    only = SimModel(
        id=model,
        context_size=context_size,
        tokens_per_second=tokens_per_second,
        prompt_tokens_per_second=tokens_per_second * prompt_factor,
    )
    needed = GENERIC.bytes_needed(only, context_size)
    limit = max(GENERIC.memory_limit_bytes, 2 * needed)
    return msgspec.structs.replace(GENERIC, models=(only,), memory_limit_bytes=limit)


class SimEngine:
    """Answers without a model: deterministic for equal options, rules, requests and seeds."""

    name = "sim"

    def __init__(self, options: SimOptions = SimOptions()) -> None:
        self.options = options
        self.device = options.device()
        self.rules = RuleBook()
        self.interruptions: dict[str, Interruption] = {}
        """What is to happen in mid-stream, by request id; taken when the answer begins."""
        self.running = 0
        self._stream: SimStream | None = None
        self._remembered: OrderedDict[str, Spoken] = OrderedDict()
        self._loading = SimLoading(lambda: self.device, options.keep_alive_seconds)
        self._preset = self.device.preset
        self._wanted = options.model if self._preset.model(options.model) else self._preset.models[0].id
        self.device.state = EngineState.READY

    @property
    def state(self) -> EngineState:
        return self.device.state

    @state.setter
    def state(self, state: EngineState) -> None:
        self.device.state = state

    @property
    def problem_code(self) -> str | None:
        return self.device.problem_code

    @problem_code.setter
    def problem_code(self, code: str | None) -> None:
        self.device.problem_code = code

    @property
    def status(self) -> EngineStatus:
        status = self.device.status()
        waits_for_nothing = status.state is EngineState.READY or (
            status.state is EngineState.NO_MODEL and status.problem_code is None
        )
        if self.options.loads_on_request and waits_for_nothing:
            return msgspec.structs.replace(status, loads_on_request=True)
        return status

    def models(self) -> Sequence[ModelInfo]:
        device = self.device
        loaded = device.model.id if device.state is EngineState.READY else None
        return [
            model.info(loaded=model.id == loaded, context_size=device.served_context) for model in device.preset.models
        ]

    async def start(self) -> None:
        self.load(self._wanted)
        self._skip_loading()

    async def close(self) -> None:
        self.device.clock.close()
        self.device.state = EngineState.NO_MODEL

    def load(self, model_id: str | None) -> None:
        """Switch to another model of the device; None unloads. A running answer ends. Raises UsageError."""
        if model_id is not None and self.device.preset.model(model_id) is None:
            known = ", ".join(model.id for model in self.device.preset.models)
            raise UsageError(f"This device has no model {model_id!r}. It has: {known}.")
        self.interrupt(
            Refusal(Code.MODEL_NOT_LOADED, "The model was changed on the device. Send it again.", retry_after=5)
        )
        if model_id is None:
            self.device.unload()
        else:
            self.device.load(model_id)

    async def load_model(self, model: str, keep_alive: float | None = None) -> float:
        """See `ModelLoader`; the seconds are the device's."""
        seconds = await self._loading.have(model)
        self._loading.expire_in(keep_alive)
        return seconds

    async def unload_model(self, model: str) -> None:
        self._loading.unload(model)

    def loaded_models(self) -> Sequence[LoadedModel]:
        return self._loading.loaded()

    def check_memory(self) -> None:
        """Unload the model when it does not fit any more, as the system would end the app."""
        if self.device.state is EngineState.READY and not self.device.check_memory():
            code = Code(self.device.problem_code or Code.INSUFFICIENT_MEMORY)
            self.interrupt(Refusal(code, self.device.problem or "Not enough memory."))

    def reset(self) -> None:
        """The device as it was when it was switched on, with its model loaded. A running answer ends."""
        self.interrupt(Refusal(Code.REQUEST_CANCELLED, "The simulator was reset."))
        self.rules.clear()
        self.interruptions.clear()
        clock, changed = self.device.clock, self.device.changed
        clock.reset()
        self.device = Device(self._preset, clock, context_size=self.options.context_size, changed=changed)
        self.device.load(self._wanted)
        self._skip_loading()

    def _skip_loading(self) -> None:
        """Nobody waits in virtual time for a model that loads at the beginning."""
        if self.device.clock.virtual:
            self.device.clock.advance(self.device.preset.load_seconds(self.device.model))

    def interrupt(self, refusal: Refusal) -> None:
        """End the running answer, if there is one, with an error."""
        if self._stream is not None:
            self._stream.fail(refusal)

    def script(self, tokens: Sequence[str | bytes]) -> None:
        """Answer the next request with exactly these tokens. Bytes may cut characters anywhere."""
        import base64

        spelled = tuple(
            token if isinstance(token, str) else RawToken(base64.b64encode(token).decode()) for token in tokens
        )
        self.rules.add(NewRule(reply=Reply(tokens=spelled), times=1))

    @property
    def tokenizer(self) -> Tokenizer:
        """That of the model in memory."""
        return self.options.tokenizers.get(self.device.model.id, RULE)

    async def count(self, request: GenerationRequest) -> int:
        return await asyncio.to_thread(self.tokenizer.prompt_tokens, request)

    async def explain(self, request: GenerationRequest) -> Explanation:
        """See `Explaining`. No model is loaded for it."""
        preset, asked = self.device.preset, self.options.context_size
        model = (preset.model(request.model) if self.options.loads_on_request else None) or self.device.model
        tokenizer = self.options.tokenizers.get(model.id, RULE)
        context_size = min(asked or model.context_size, model.context_size)
        return await asyncio.to_thread(explanation, request, model, tokenizer, context_size)

    async def embed(self, inputs: Sequence[EmbeddingInput], *, truncate: bool) -> Embeddings:
        """Deterministic vectors. Takes no time on the device."""
        self._check_loaded()
        if not self.device.model.embeddings:
            raise Refusal(
                Code.INVALID_PARAMETER, "The loaded model makes no embeddings. Load one that does.", param="model"
            )
        window = self.device.served_context
        whole = [tokens_to_embed(given, self.tokenizer.split) for given in inputs]
        read = [cut_to(window, tokens, index, truncate=truncate) for index, tokens in enumerate(whole)]
        return Embeddings(
            vectors=tuple(unit_vector(tokens) for tokens in read),
            prompt_tokens=sum(map(len, read)),
            truncated=tuple(index for index, tokens in enumerate(whole) if len(tokens) > window),
        )

    def generate(self, request: GenerationRequest) -> AbstractAsyncContextManager[EventStream]:
        return _Generation(self, request)

    async def accept(self, request: GenerationRequest) -> SimStream:
        """The stream of an answer. Raises what the device or a rule refuses."""
        interruption = self.interruptions.pop(request.id, None)
        load_seconds = 0.0
        if self.options.loads_on_request:
            load_seconds = await self._loading.have(request.model)
        tokenizer = self.tokenizer
        prompt_tokens = tokenizer.prompt_tokens(request) if tokenizer.is_quick else await self.count(request)
        self._check(request, prompt_tokens)
        # a hostile schema takes seconds to follow
        takes_long = request.constraint is not None or request.tools or not tokenizer.is_quick
        if takes_long:
            script = await asyncio.to_thread(self._script, request, tokenizer)
        else:
            script = self._script(request, tokenizer)
        answer = SimAnswer(request, script, self.device, prompt_tokens, interruption=interruption, tokenizer=tokenizer)
        stream = SimStream(answer)
        stream.load_seconds = load_seconds
        return stream

    def began(self, stream: SimStream) -> None:
        """Count a stream as running, so that whatever happens to the device can end it."""
        self._stream = stream
        self.running += 1

    def ended(self, request: GenerationRequest) -> None:
        self.running -= 1
        self._stream = None
        if self.options.loads_on_request:
            self._loading.expire_in(request.keep_alive)

    def _check(self, request: GenerationRequest, prompt_tokens: int) -> None:
        self._check_loaded()
        for refusal in unfit(request, prompt_tokens, self.device.model, self.device.served_context):
            raise refusal

    def _check_loaded(self) -> None:
        if self.device.state is not EngineState.READY:
            raise Refusal(Code.MODEL_NOT_LOADED, "The model was unloaded meanwhile. Try again shortly.", retry_after=5)

    def _script(self, request: GenerationRequest, tokenizer: Tokenizer) -> Script:
        seed = self.options.seed
        reply = self.rules.take(request)
        if reply is not None:
            return scripted(reply, request, seed_of(request, seed), tokenizer)
        if request.tool_choice.mode is ToolMode.REQUIRED and request.tools:
            return Script(calls=(forced_call(request, seed_of(request, seed)),))
        reasoning = thinking(request, seed_of(request, seed), tokenizer) if self._thinks(request) else ()
        if request.constraint is not None:
            text = example.reply_to(request, seed=self.options.seed) or ""
            return Script(tokens=tokenizer.split(text), reasoning=reasoning)
        said = self._tokens(request, tokenizer)
        if isinstance(said, Spoken):
            return Script(tokens=said.tokens, reasoning=reasoning) if reasoning else said.script
        return Script(tokens=said, reasoning=reasoning)

    def _thinks(self, request: GenerationRequest) -> bool:
        return request.reasoning_effort is not None and self.device.model.thinking

    def _tokens(self, request: GenerationRequest, tokenizer: Tokenizer) -> Iterable[str] | Iterable[bytes] | Spoken:
        """The reply where nothing is scripted. Short prose is remembered, since tests ask the same again and again."""
        if self.options.reply == "echo":
            return tokenizer.split(last_message(request))
        seed, count = seed_of(request, self.options.seed), self.options.reply_tokens
        if count > _MOST_REMEMBERED_TOKENS or len(seed) > _MOST_REMEMBERED_TOKENS or not tokenizer.is_quick:
            return prose_of(tokenizer, seed, count)
        spoken = self._remembered.get(seed)
        if spoken is None:
            spoken = self._remembered[seed] = Spoken([*islice(prose(seed), count)])
            if len(self._remembered) > _MOST_REMEMBERED_REPLIES:
                self._remembered.popitem(last=False)
        return spoken


class _Generation:
    """One answer from its acceptance to its end. A class, because a generator costs short answers more."""

    __slots__ = ("_engine", "_request")

    def __init__(self, engine: SimEngine, request: GenerationRequest) -> None:
        self._engine = engine
        self._request = request

    async def __aenter__(self) -> SimStream:
        stream = await self._engine.accept(self._request)
        self._engine.began(stream)
        return stream

    async def __aexit__(self, *_: object) -> None:
        self._engine.ended(self._request)
