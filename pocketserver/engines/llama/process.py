"""The llama engine as the server sees it: requests go to the model process, its frames become event streams."""

import asyncio
import importlib.util
import itertools
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import msgspec

from pocketserver.chat import (
    EmbeddingInput,
    Embeddings,
    EngineState,
    EngineStatus,
    Explanation,
    GenerationRequest,
    ModelInfo,
)
from pocketserver.engines.engine import EventStream, stalled
from pocketserver.engines.llama.frames import (
    SCHEMA_PARAM,
    Accepted,
    Cancel,
    Count,
    Counted,
    Embed,
    Embedded,
    Ended,
    Events,
    Explain,
    Explained,
    FrameError,
    FromWorker,
    Generate,
    Preparing,
    PromptProgress,
    Refused,
    Stage,
    ToWorker,
)
from pocketserver.engines.llama.link import WorkerLink
from pocketserver.engines.llama.options import LlamaOptions
from pocketserver.engines.llama.supervisor import Phase, Supervisor
from pocketserver.engines.llama.tuning import Choice, TuningRecord, choose
from pocketserver.errors import Code, Refusal, StartupError

__all__ = ["LlamaEngine", "LlamaOptions", "Tuned"]

logger = logging.getLogger(__name__)

_STUCK_SECONDS = 1.0
_REAP_SECONDS = 15.0
_PATIENCE = 3
"""So many times its seconds a stage may last while other programs have the processor."""
_OWN_SHARE = 0.8
"""A stage that had so much of its seconds on a processor is slow by itself."""
_EMBED_SECONDS = 120.0  # for a micro-batch, as patient as the default `stall_seconds`

_STATES: Mapping[Phase, EngineState] = {
    Phase.NEW: EngineState.NO_MODEL,
    Phase.LOADING: EngineState.LOADING,
    Phase.READY: EngineState.READY,
    Phase.RELOADING: EngineState.READY,  # requests are taken, and wait for the new worker
    Phase.FAILED: EngineState.NO_MODEL,
    Phase.CLOSED: EngineState.NO_MODEL,
}

_TOO_SLOW: Mapping[Stage, Refusal] = {
    Stage.RENDER: Refusal(
        Code.TEMPLATE_UNSUPPORTED,
        "The model's chat template takes too long with this conversation. Shorten the conversation, or start the server"
        " with another --chat-template.",
    ),
    Stage.CONSTRAINT: Refusal(
        Code.INVALID_PARAMETER, "The schema takes too long to compile. Use a simpler one.", param=SCHEMA_PARAM
    ),
}


@dataclass(slots=True)
class _Answer:
    """One request in the model process. `ended` is set when the process is done with it, or gone."""

    id: str
    stream: EventStream = field(default_factory=EventStream)
    accepted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    stage: Stage | None = None
    due: float = 0.0
    """When the present stage has had its time, on the loop's clock."""
    processor_seconds: float = 0.0
    """What the process had used when the present stage began."""
    embedded: list[Embedded] = field(default_factory=list)

    def refuse(self, refusal: Refusal) -> None:
        if self.accepted.done():
            self.stream.fail(refusal)
        else:
            self.accepted.set_exception(refusal)

    def extend(self, seconds: float) -> None:
        """Something was done: whoever waits for acceptance goes on waiting, for so long from now."""
        self.due = asyncio.get_running_loop().time() + seconds

    def end(self) -> None:
        if not self.accepted.done():
            self.accepted.set_result(None)  # an embedding is accepted when it is whole
        self.stream.close()
        self.ended.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """Measurements, the choice made from them, and the llama.cpp that they are of."""

    record: TuningRecord
    choice: Choice
    version: str
    build: str


class LlamaEngine:
    """Serves one GGUF model from a process of its own. Implements `engines.engine.Engine`."""

    name = "llama"

    def __init__(self, options: LlamaOptions) -> None:
        """Raises StartupError when the packages of the extra `llama` are missing."""
        _check_packages()
        self._options = options
        self._supervisor = Supervisor(options, self._dispatch, self._lose)
        self._lane = asyncio.Lock()
        self._answer: _Answer | None = None
        self._counts: dict[int, asyncio.Future[Counted | Explained]] = {}
        self._tickets = itertools.count(1)
        self._releases: set[asyncio.Task[None]] = set()
        self._stuck = False

    @property
    def status(self) -> EngineStatus:
        supervisor, worker = self._supervisor, self._supervisor.worker
        loading = supervisor.phase in (Phase.LOADING, Phase.RELOADING)
        gpu_layers = worker.loaded.gpu_layers if worker else 0
        return EngineStatus(
            state=EngineState.STUCK if self._stuck else _STATES[supervisor.phase],
            model=self._options.model_id if supervisor.phase in (Phase.READY, Phase.RELOADING) else None,
            context_size=worker.loaded.context_size if worker else None,
            load_progress=supervisor.progress if loading else None,
            metal=bool(worker and worker.hello.metal and gpu_layers > 0),
            gpu_layers=gpu_layers,
            safe_mode=bool(worker and worker.safe_mode),
            tuning_progress=supervisor.tuning_progress,
            runtime=str(worker.loaded.runtime) if worker else None,
            supports_tools=bool(worker and worker.loaded.supports_tools),
            problem=supervisor.problem.message if supervisor.problem else None,
            problem_code=supervisor.problem.code if supervisor.problem else None,
            worker_pid=worker.link.pid if worker else None,
            worker_restarts=supervisor.restarts,
        )

    @property
    def tuned(self) -> Tuned | None:
        """What was measured and what follows, once the model is loaded with `tuning`."""
        supervisor, worker = self._supervisor, self._supervisor.worker
        if supervisor.tuned is None or worker is None:
            return None
        choice = choose(supervisor.tuned, self._options, worker.loaded.context_size)
        choice = replace(choice, runtime=worker.loaded.runtime, drafts=worker.loaded.drafts)  # what really runs
        return Tuned(record=supervisor.tuned, choice=choice, version=worker.hello.version, build=worker.hello.build)

    def models(self) -> Sequence[ModelInfo]:
        """The model that this engine serves, once its file has been read."""
        metadata = self._supervisor.metadata
        if metadata is None:
            return ()
        worker = self._supervisor.worker
        info = ModelInfo(
            id=self._options.model_id,
            loaded=worker is not None,
            size_bytes=metadata.size_bytes,
            quantization=metadata.quantization,
            architecture=metadata.architecture,
            parameters=metadata.parameter_count,
            context_size=worker.loaded.context_size if worker else metadata.context_length,
        )
        return (info,)

    async def start(self) -> None:
        """Begin to load the model; returns at once. After a failure, try again."""
        self._supervisor.start()

    async def loaded(self) -> None:
        """Wait until requests can be answered. Raises the Refusal that tells why they cannot."""
        await self._supervisor.ready()

    async def close(self) -> None:
        await self._supervisor.close()
        if self._releases:
            await asyncio.wait(self._releases)

    def restart(self) -> None:
        """Replace the model process at once, whatever it is doing; its request ends in WORKER_LOST."""
        self._supervisor.kill()

    @asynccontextmanager
    async def generate(self, request: GenerationRequest) -> AsyncIterator[EventStream]:
        """Open the answer's event stream; see `Engine.generate`. Waits for a worker that is being replaced."""
        async with self._turn(request.id, Generate(request=self._budgeted(request))) as answer:
            await self._accepted(answer, self._options.prepare_seconds, _PATIENCE)
            yield answer.stream

    async def embed(self, inputs: Sequence[EmbeddingInput], *, truncate: bool) -> Embeddings:
        """Vectors by the model's hidden states; see `Engine.embed`. The conversation in the context stays."""
        frame = Embed(id=f"embed-{next(self._tickets)}", inputs=tuple(inputs), truncate=truncate)
        async with self._turn(frame.id, frame) as answer:
            await self._accepted(answer, _EMBED_SECONDS, patience=1)
            return embeddings_of(answer.embedded)

    @asynccontextmanager
    async def _turn(self, request_id: str, frame: Generate | Embed) -> AsyncIterator[_Answer]:
        """Have the lane and let the worker begin; leaving the block cancels what is not done."""
        await self._lane.acquire()
        answer: _Answer | None = None
        link: WorkerLink | None = None
        try:
            link = (await self._supervisor.ready()).link
            _send(link, frame)
            answer = self._answer = _Answer(request_id)
            yield answer
        finally:
            # a task of its own: whoever cancels the reader a second time must not leave the lane half free
            release = asyncio.create_task(self._release(answer, link), name="llama-release")
            self._releases.add(release)
            release.add_done_callback(self._releases.discard)
            await asyncio.shield(release)

    async def count(self, request: GenerationRequest) -> int:
        """Prompt tokens of a request, beside a running generation."""
        counted = await self._beside(Count(ticket=next(self._tickets), request=request))
        assert isinstance(counted, Counted)
        return counted.tokens

    async def explain(self, request: GenerationRequest) -> Explanation:
        """See `Explaining`; beside a running generation."""
        asked = Explain(ticket=next(self._tickets), request=self._budgeted(request))
        explained = await self._beside(asked)
        assert isinstance(explained, Explained)
        return explained.explanation

    async def _beside(self, frame: Count | Explain) -> Counted | Explained:
        """Ask the worker's counting thread, which must answer within the time that rendering may take."""
        link = (await self._supervisor.ready()).link
        ticket = frame.ticket
        counted = self._counts[ticket] = asyncio.get_running_loop().create_future()
        try:
            _send(link, frame)
            return await asyncio.wait_for(counted, _PATIENCE * self._options.prepare_seconds)
        except TimeoutError:
            self._supervisor.kill()
            raise _TOO_SLOW[Stage.RENDER] from None
        finally:
            self._counts.pop(ticket, None)

    def _budgeted(self, request: GenerationRequest) -> GenerationRequest:
        budget = self._options.reasoning_budget
        if budget is None or request.reasoning_budget is not None:
            return request
        return msgspec.structs.replace(request, reasoning_budget=budget)

    async def _accepted(self, answer: _Answer, seconds: float, patience: int) -> None:
        """Wait until a request is accepted. Each stage has so many seconds, and more if the process did not get them.

        The process is replaced when a stage uses them up, or does not end within `patience` times as long.
        """
        loop = asyncio.get_running_loop()
        answer.extend(seconds)
        stage, periods = answer.stage, 0
        while not answer.accepted.done():
            if (left := answer.due - loop.time()) > 0:
                await asyncio.wait([answer.accepted], timeout=left)
                continue
            stage, periods = answer.stage, periods + 1 if stage is answer.stage else 1
            had_time = self._processor_seconds() - answer.processor_seconds >= _OWN_SHARE * seconds
            if stage is None or had_time or periods >= patience:
                self._supervisor.kill()
                raise _too_slow(stage, seconds) if had_time else stalled(periods * seconds)
            answer.extend(seconds)
        await answer.accepted

    def _processor_seconds(self) -> float:
        worker = self._supervisor.worker
        return worker.link.processor_seconds() if worker else 0.0

    async def _release(self, answer: _Answer | None, link: WorkerLink | None) -> None:
        """Wait until the worker is really free; one that does not come back is replaced."""
        try:
            if answer is not None and link is not None and not answer.ended.is_set():
                link.send(Cancel(id=answer.id))
                await self._wait_for_end(answer)
        finally:
            self._answer = None
            self._stuck = False
            self._lane.release()

    async def _wait_for_end(self, answer: _Answer) -> None:
        soon = min(_STUCK_SECONDS, self._options.cancel_seconds)
        if await _is_set(answer.ended, soon):
            return
        self._stuck = True
        if await _is_set(answer.ended, self._options.cancel_seconds - soon):
            return
        logger.warning("The model process does not answer; it is replaced.")
        self._supervisor.kill()
        await _is_set(answer.ended, _REAP_SECONDS)

    def _dispatch(self, frame: FromWorker) -> None:
        match frame:
            case Counted(ticket=ticket) | Explained(ticket=ticket):
                counted = self._counts.get(ticket)
                if counted is not None and not counted.done():
                    counted.set_result(frame)
            case Refused(ticket=int() as ticket):
                counted = self._counts.get(ticket)
                if counted is not None and not counted.done():
                    counted.set_exception(_refusal(frame))
            case Preparing() | Accepted() | PromptProgress() | Events() | Embedded() | Refused() | Ended():
                if self._answer is not None and self._answer.id == frame.id:
                    self._advance(self._answer, frame)
            case _:
                logger.warning("An unexpected frame: %s", type(frame).__name__)

    def _advance(
        self, answer: _Answer, frame: Preparing | Accepted | PromptProgress | Events | Embedded | Refused | Ended
    ) -> None:
        match frame:
            case Preparing(stage=stage):
                answer.stage = stage
                answer.processor_seconds = self._processor_seconds()
                answer.extend(self._options.prepare_seconds)
            case Accepted():
                answer.stream.touch()
                if not answer.accepted.done():
                    answer.accepted.set_result(None)
            case PromptProgress():
                answer.stream.touch()
                answer.extend(_EMBED_SECONDS)
            case Embedded():
                answer.embedded.append(frame)
            case Events(batch=batch):
                answer.stream.put(batch)
            case Refused():
                answer.refuse(_refusal(frame))
            case Ended():
                answer.end()

    def _lose(self, refusal: Refusal) -> None:
        """The worker is gone, and everything that waited for it."""
        if self._answer is not None and not self._answer.ended.is_set():
            self._answer.refuse(refusal)
            self._answer.end()
        for counted in self._counts.values():
            if not counted.done():
                counted.set_exception(refusal)


def _send(link: WorkerLink, frame: ToWorker) -> None:
    try:
        link.send(frame)
    except FrameError as error:
        raise Refusal(
            Code.INVALID_PARAMETER,
            "The request cannot be passed to the model: it nests too deeply or holds a number that is too large.",
        ) from error


def embeddings_of(frames: Sequence[Embedded]) -> Embeddings:
    """The vectors of a worker's frames, in the order of the inputs."""
    return Embeddings(
        vectors=tuple(tuple(memoryview(frame.vector).cast("f").tolist()) for frame in frames),
        prompt_tokens=sum(frame.tokens for frame in frames),
        truncated=tuple(index for index, frame in enumerate(frames) if frame.truncated),
    )


def _too_slow(stage: Stage | None, seconds: float) -> Refusal:
    return stalled(seconds) if stage is None else _TOO_SLOW[stage]


def _refusal(frame: Refused) -> Refusal:
    return Refusal(Code(frame.code), frame.message, param=frame.param, details=dict(frame.details))


async def _is_set(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), max(0.0, seconds))
    except TimeoutError:
        return False
    return True


def _check_packages() -> None:
    missing = [name for name in ("llama_cpp", "llguidance", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        raise StartupError(
            f"The engine llama needs packages that are missing ({', '.join(missing)}). Install pocketserver[llama]."
        )
