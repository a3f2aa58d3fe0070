"""What a model process holds once a model is loaded, and how it answers: render, check, compile, decode."""

import threading
import time
from collections.abc import Callable, Sequence

import msgspec
import psutil

from pocketserver.chat import Event, Explanation, GenerationRequest
from pocketserver.engines.llama import native
from pocketserver.engines.llama.cache_opening import open_cache
from pocketserver.engines.llama.decoder import Decoder, crash, probe
from pocketserver.engines.llama.dialogue import Dialogue
from pocketserver.engines.llama.echo import Echo
from pocketserver.engines.llama.embedder import Embedder
from pocketserver.engines.llama.examination import FALLBACK_TEMPLATE, examine_before, folder_of
from pocketserver.engines.llama.frames import (
    CLOSE_SECONDS,
    Accepted,
    Embed,
    Events,
    Examining,
    FromWorker,
    Load,
    Loaded,
    LoadProgress,
    Preparing,
    Probing,
    PromptProgress,
    Stage,
)
from pocketserver.engines.llama.generation import Generation
from pocketserver.engines.llama.model import Model
from pocketserver.engines.llama.prompting import prompt_field, too_long
from pocketserver.engines.llama.reading import ReadingPlan
from pocketserver.engines.llama.runtime import Runtime

Send = Callable[[FromWorker], None]


class Job:
    """One request's way through the model process. `cancel` may be called from any thread, at any time."""

    def __init__(self, request: GenerationRequest | Embed) -> None:
        self.request = request
        self.cancelled = False
        self._lock = threading.Lock()
        self._abort: native.AbortFlag | None = None

    def cancel(self) -> None:
        with self._lock:
            self.cancelled = True
            if self._abort is not None:
                self._abort.set()

    def attach(self, abort: native.AbortFlag) -> None:
        """From now on, `cancel` stops the running decode."""
        with self._lock:
            self._abort = abort
            if self.cancelled:
                abort.set()

    def detach(self) -> None:
        with self._lock:
            if self._abort is not None:
                self._abort.clear()
            self._abort = None


class Session:
    """A loaded model and its context. `answer` belongs to one thread, `count` and `explain` to another."""

    def __init__(self, load: Load, send: Send) -> None:
        """Load and probe. Raises Refusal. Sends progress, then `Probing` before the first decode."""
        started = time.perf_counter()
        self._send = send
        if not load.examined:
            send(Examining())
            examine_before(load)
            send(LoadProgress(fraction=0.0))
        progress = native.progress_callback(lambda fraction: send(LoadProgress(fraction=fraction)))
        self._model = Model(load, progress)
        self._dialogue = self._examined(load)
        self._runtime = runtime_of(load)
        self._drafts = load.drafts
        self._decoder = Decoder(self._model, load, self._runtime)
        send(Probing())
        if load.abort_in_probe_with_extra_buffers and load.extra_buffers:
            crash()
        probe(self._decoder, self._model.vocabulary.size)
        self._cache = open_cache(load, self._decoder)
        self._embedder = Embedder(self._model, load, self._runtime, send)
        self.rest_seconds = load.cache.rest_seconds
        self._prompter = self._dialogue.prompter(self._decoder.context_size)
        self._counting = self._dialogue.prompter(self._decoder.context_size)
        self._plan = ReadingPlan(
            blas=self._decoder.blas,
            opening=self._dialogue.answer_opening() if self._decoder.blas else (),
            end_tokens=self._model.vocabulary.end_tokens,
        )
        self._explainer = self._dialogue.explainer(
            self._decoder.context_size, lambda request, prompt: self._cache.known(self._reading(request, prompt))
        )
        self._load_seconds = time.perf_counter() - started
        send(self._loaded())

    def count(self, request: GenerationRequest) -> int:
        return len(self._counting.prompt(request).tokens)

    def explain(self, request: GenerationRequest) -> Explanation:
        return self._explainer.explain(_budgeted(request))

    def answer(self, job: Job) -> None:
        """Answer one request in frames. Raises Refusal, and DecodeAbortedError once it is cancelled."""
        if isinstance(job.request, Embed):
            self._embed(job, job.request)
        else:
            self._generate(job, _budgeted(job.request))

    def _reading(self, request: GenerationRequest, prompt: Sequence[int]) -> list[int]:
        """A prompt that is echoed with scores is read as `Echo` does: unmarked."""
        if request.echo and request.top_logprobs is not None:
            return list(prompt)
        return self._plan.marked(prompt, raw=request.prompt is not None)

    def _embed(self, job: Job, request: Embed) -> None:
        job.attach(self._embedder.abort)
        try:
            self._embedder.answer(request, lambda: job.cancelled)
        finally:
            job.detach()

    def _generate(self, job: Job, request: GenerationRequest) -> None:
        self._send(Preparing(id=request.id, stage=Stage.RENDER))
        rendered = self._prompter.prompt(request)
        prompt = rendered.tokens
        self._check_length(prompt, prompt_field(request))
        self._send(Preparing(id=request.id, stage=Stage.CONSTRAINT))
        constraint = self._dialogue.constraint(request, rendered)
        reading = self._reading(request, prompt)
        cached = self._cache.prepare(reading)
        self._send(Accepted(id=request.id, prompt_tokens=len(prompt), cached_tokens=cached))
        generation = Generation(
            request=request,
            prompt=prompt,
            reading=reading,
            cached_tokens=cached,
            decoder=self._decoder,
            vocabulary=self._model.vocabulary,
            reply=self._dialogue.reply(request, rendered, held=constraint is not None),
            constraint=constraint,
            emit=lambda events: self._emit(request.id, list(events)),
            progress=lambda tokens: self._send(PromptProgress(id=request.id, tokens=tokens)),
            cancelled=lambda: job.cancelled,
            drafts=self._drafts,
            load_seconds=self._load_seconds,
        )
        job.attach(self._decoder.abort)
        try:
            if request.echo:
                generation.cached_tokens = self._echo(request, prompt, generation)
            generation.run()
        finally:
            job.detach()
            self._cache.answered()

    def _echo(self, request: GenerationRequest, prompt: list[int], generation: Generation) -> int:
        """Begin the answer with its prompt; how many of its tokens need no decoding after that."""
        echo, scored = Echo(request, prompt, self._model.vocabulary), request.top_logprobs is not None
        said = echo.scored(self._decoder, generation.progress, generation.cancelled) if scored else echo.plain()
        if said:
            generation.emit(said)
        return self._decoder.reuse(prompt) if scored else generation.cached_tokens

    def rest(self) -> None:
        """Nobody has asked for a while: time to keep the conversation."""
        self._cache.checkpoint()

    def close(self) -> None:
        """The process is about to end. The server waits no longer than this takes."""
        self._cache.close(CLOSE_SECONDS)

    def _emit(self, request_id: str, events: list[Event]) -> None:
        self._send(Events(id=request_id, batch=tuple(events)))

    def _check_length(self, prompt: list[int], field: str) -> None:
        size, count = self._decoder.context_size, len(prompt)
        if count >= size:
            raise too_long(count, size, field)

    def _examined(self, load: Load) -> Dialogue:
        """Look at the template, which is a stranger's program: the server keeps a deadline meanwhile."""
        self._source = load.template or self._model.chat_template or FALLBACK_TEMPLATE
        self._send(Examining())
        dialogue = Dialogue(self._source, self._model.vocabulary, folder_of(load.state_folder))
        self._send(LoadProgress(fraction=1.0))
        return dialogue

    def _loaded(self) -> Loaded:
        template = self._prompter.template
        problem = template.problem
        if problem is None and self._source is FALLBACK_TEMPLATE:
            problem = "the model file has no chat template, ChatML is used"
        return Loaded(
            context_size=self._decoder.context_size,
            gpu_layers=self._model.gpu_layers,
            runtime=msgspec.structs.replace(self._runtime, blas=self._decoder.blas),
            drafts=self._drafts,
            supports_tools=self._dialogue.supports_tools,
            template_problem=problem,
            seconds=self._load_seconds,
        )


def runtime_of(load: Load) -> Runtime:
    """How a model is run; what the frame leaves open is chosen by the machine's cores."""
    threads = load.threads or physical_cores()
    return Runtime(
        threads=threads,
        threads_batch=load.threads_batch or threads,
        kv_type=load.kv_type,
        flash_attention=load.flash_attention,
        micro_batch=load.micro_batch,
        blas=load.blas,
    )


def physical_cores() -> int:
    """Hyper-threads share the units that decoding keeps busy; a second thread on a core only costs."""
    return psutil.cpu_count(logical=False) or psutil.cpu_count() or 1


def _budgeted(request: GenerationRequest) -> GenerationRequest:
    """Thinking that is switched off has no budget, also where a template thinks regardless."""
    return msgspec.structs.replace(request, reasoning_budget=0) if request.reasoning_effort == "none" else request
