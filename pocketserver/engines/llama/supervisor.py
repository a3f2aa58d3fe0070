"""Keeps one model process alive: loads the model, notices crashes, starts anew, and says what state things are in."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from pocketserver.engines.llama import blas_library
from pocketserver.engines.llama.frames import (
    CLOSE_SECONDS,
    Accepted,
    Caching,
    Close,
    Examining,
    FromWorker,
    Hello,
    Load,
    Loaded,
    LoadFailed,
    LoadProgress,
    Probing,
)
from pocketserver.engines.llama.free_memory import available_memory
from pocketserver.engines.llama.link import WorkerLink, how_it_ended
from pocketserver.engines.llama.memory import choose_context
from pocketserver.engines.llama.options import LlamaOptions
from pocketserver.engines.llama.runtime import Drafts, KvType, check
from pocketserver.engines.llama.safe_mode import SafeModeMemory, combination
from pocketserver.engines.llama.tuner import Tuner, with_choice
from pocketserver.engines.llama.tuning import TuningRecord, choose
from pocketserver.errors import Code, Refusal, StartupError
from pocketserver.models.gguf import BadModelFile, GgufMetadata, read_metadata

logger = logging.getLogger(__name__)

HELLO_SECONDS = 60.0  # importing numpy and the library from a cold, slow disk
SILENCE_SECONDS = 180.0  # between two signs of life while loading; a first decode of a large model is one silence
EXAMINE_SECONDS = 60.0  # some hundred renders take one second; each of them has an end of its own in the worker
IDLE_CRASHES = 3
"""So many crashes without an answer between them, and the worker is not started again."""
MAX_TEMPLATE_BYTES = 256 * 1024
MICRO_BATCH = 256
_KILLED = -9
_END_SECONDS = 1.0
TEMPLATE_HANGS = Refusal(
    Code.TEMPLATE_UNSUPPORTED,
    "The model's chat template does not come to an end. Start the server with another --chat-template.",
)
TEMPLATE_CRASHES = Refusal(
    Code.TEMPLATE_UNSUPPORTED,
    "The model's chat template ends the model process. Start the server with another --chat-template.",
)


class Phase(StrEnum):
    NEW = "new"
    LOADING = "loading"
    READY = "ready"
    RELOADING = "reloading"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(slots=True)
class Worker:
    """A process with the model loaded."""

    link: WorkerLink
    hello: Hello
    loaded: Loaded
    safe_mode: bool


class Supervisor:
    """Owns the model process. Frames go to `on_frame`; `on_lost` hears, before any wait, that a ready one is gone."""

    def __init__(
        self, options: LlamaOptions, on_frame: Callable[[FromWorker], None], on_lost: Callable[[Refusal], None]
    ) -> None:
        self._options = options
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._task: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        self._ended = asyncio.Event()
        """The process has ended because it was told to."""
        self._link: WorkerLink | None = None
        self._replaced: WorkerLink | None = None
        self._examined = False
        self._idle_crashes = 0
        self._memory = SafeModeMemory(options.state_folder)
        self.phase = Phase.NEW
        self.worker: Worker | None = None
        self.metadata: GgufMetadata | None = None
        self.progress = 0.0
        self.tuning_progress: float | None = None
        self.tuned: TuningRecord | None = None
        self.restarts = 0
        self.problem: Refusal | None = None

    def start(self) -> None:
        """Begin to load; no effect while a worker is there or on its way."""
        if self.phase in (Phase.NEW, Phase.FAILED):
            self._enter(Phase.LOADING)
            self._task = asyncio.create_task(self._run(), name="llama-supervisor")

    async def close(self) -> None:
        """End the worker and everything that waits for it. Safe to call twice."""
        serving = self.phase is Phase.READY
        self._enter(Phase.CLOSED)
        self._on_lost(Refusal(Code.MODEL_NOT_LOADED, "The server is shutting down. Connect again later."))
        if serving and self._link is not None and self._options.cache_disk_bytes > 0:
            await self._let_end(self._link)
        self.kill()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _let_end(self, link: WorkerLink) -> None:
        """Give the worker time to bring its conversations to the disk."""
        link.send(Close())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), CLOSE_SECONDS + _END_SECONDS)

    def kill(self) -> None:
        """End the present process; another one is loaded in its place unless this is closed.

        That is no crash: requests that take too long must not add up to a model that is given up.
        """
        if self._link is not None:
            self._replaced = self._link
            self._link.kill()

    async def ready(self) -> Worker:
        """The worker, as soon as it is loaded. Raises the Refusal that tells why there is none."""
        await self._settled.wait()
        if self.worker is None:
            raise self.problem or Refusal(Code.MODEL_NOT_LOADED, "No model is loaded. Start the server with a model.")
        return self.worker

    def _enter(self, phase: Phase) -> None:
        """The one place where the state changes. A closed supervisor stays closed."""
        if self.phase is Phase.CLOSED:
            return
        self.phase = phase
        if phase in (Phase.LOADING, Phase.RELOADING):
            self.worker, self.problem, self.progress = None, None, 0.0
            self._settled.clear()
        elif phase is not Phase.READY:
            self.worker = None
        if phase in (Phase.READY, Phase.FAILED, Phase.CLOSED):
            self._settled.set()

    async def _run(self) -> None:
        try:
            self._fail(await self._serve_on())
            while self.restarts > 0:  # it has worked, so what ails it may pass: memory, a full disk, an impatient hand
                await self._close_link()
                await asyncio.sleep(self._options.retry_seconds)
                self._idle_crashes = 0
                self._enter(Phase.LOADING)
                self._fail(await self._serve_on())
        finally:
            await self._close_link()

    async def _serve_on(self) -> Refusal:
        """Load and serve, again and again. Returns why that came to an end."""
        try:
            while True:
                self.worker = await self._load()
                self._enter(Phase.READY)
                await self._serve(self.worker)
        except Refusal as refusal:
            return refusal
        except BadModelFile as error:
            return Refusal(Code.MODEL_NOT_LOADED, error.without_folder())
        except (StartupError, OSError) as error:
            return Refusal(Code.INTERNAL_ERROR, f"The model process cannot be started: {error}.")
        except Exception:
            logger.exception("The model process cannot be kept alive.")
            return Refusal(Code.INTERNAL_ERROR, "The model process failed. Restart the server; see its log.")

    async def _close_link(self) -> None:
        if self._link is not None:
            await self._link.close()

    def _fail(self, refusal: Refusal) -> None:
        logger.error("No model is loaded: %s", refusal.message)
        self.problem = refusal
        self._enter(Phase.FAILED)

    async def _serve(self, worker: Worker) -> None:
        """Hand frames on until the process is gone, then prepare for the next one."""
        while (frame := await worker.link.receive()) is not None:
            if isinstance(frame, Accepted):
                self._idle_crashes = 0
            self._on_frame(frame)
        if self.phase is Phase.CLOSED:
            self._ended.set()
            await asyncio.Event().wait()  # until `close` cancels this
        self._enter(Phase.RELOADING)
        lost = Refusal(
            Code.WORKER_LOST,
            "The model process ended while it worked on this request. It is being restarted; send the request again.",
            retry_after=2,
        )
        self._on_lost(lost)
        code = await worker.link.ended()
        self.restarts += 1
        if worker.link is not self._replaced:
            self._idle_crashes += 1
        logger.warning("The model process %s. %s", how_it_ended(code), worker.link.last_words)
        if self._idle_crashes >= IDLE_CRASHES:
            raise Refusal(
                Code.INTERNAL_ERROR,
                f"The model process ended {IDLE_CRASHES} times without an answer. Choose another model; see the log.",
            )

    async def _load(self) -> Worker:
        """Load in the usual mode, or in safe mode where that is known to crash or has just crashed."""
        metadata, load = await asyncio.to_thread(self._plan)
        self.metadata = metadata
        worker = await self._attempt(load)
        if worker is None:
            worker = await self._attempt(load)
        if worker is None:
            raise Refusal(Code.INTERNAL_ERROR, "The model crashes on this machine. Choose another model; see the log.")
        return worker

    def _plan(self) -> tuple[GgufMetadata, Load]:
        """Check the file, memory and template. Blocks. Raises Refusal or StartupError."""
        options = self._options
        check(options.kv_type, options.flash_attention)
        metadata = read_metadata(options.path)
        if metadata.is_encoder:
            raise Refusal(Code.MODEL_NOT_LOADED, "This model only makes embeddings. Choose a model that writes text.")
        available = available_memory(options.memory_limit_bytes)
        kv_type, micro_batch = options.kv_type or KvType.F16, options.micro_batch or MICRO_BATCH
        blas = options.blas is not False and blas_library.installed() is not None
        load = Load(
            path=str(options.path),
            context_size=choose_context(metadata, options.context, available, micro_batch, kv_type, blas=blas),
            threads=options.threads,
            threads_batch=options.threads_batch,
            kv_type=kv_type,
            flash_attention=options.flash_attention,
            gpu_layers=options.gpu_layers if isinstance(options.gpu_layers, int) else -1,
            micro_batch=micro_batch,
            blas=bool(options.blas),
            drafts=Drafts(tokens=options.draft_tokens or 0),
            template=read_template(options.chat_template),
            state_folder=str(options.state_folder),
            cache=Caching(
                memory_bytes=options.cache_memory_bytes,
                disk_bytes=options.cache_disk_bytes,
                rest_seconds=options.cache_rest_seconds,
                model=options.model_id,
                model_parts=tuple(str(part) for part in metadata.parts),
            ),
            abort_in_probe_with_extra_buffers=options.abort_in_probe_with_extra_buffers,
        )
        return metadata, load

    async def _attempt(self, load: Load) -> Worker | None:
        """Start a process and load. None: it crashed in the probe, and that is remembered. Raises Refusal."""
        link, hello = await self._started()
        size = self.metadata.size_bytes if self.metadata else 0
        key = await asyncio.to_thread(combination, self._options.path, size, f"{hello.version}\n{hello.build}")
        safe = await asyncio.to_thread(self._memory.holds, key)
        load = msgspec.structs.replace(load, extra_buffers=not safe, examined=self._examined)
        if self._options.tuning:
            record, probing = await self._record(link, hello, load, f"{key} {safe}")
            if record is None:
                await self._crashed(link, key, probing=probing, safe=safe)
                return None
            self.tuned = record
            load = load if record.crashed else with_choice(load, choose(record, self._options, load.context_size))
            assert self._link is not None
            link = self._link
        link.send(load)
        loaded, probing = await self._until_loaded(link)
        if loaded is not None:
            self._examined = True
            self._report(hello, loaded, safe)
            return Worker(link, hello, loaded, safe)
        await self._crashed(link, key, probing=probing, safe=safe)
        return None

    async def _started(self) -> tuple[WorkerLink, Hello]:
        link = self._link = await WorkerLink.start()
        return link, await self._hello(link)

    async def _record(
        self, link: WorkerLink, hello: Hello, load: Load, machine: str
    ) -> tuple[TuningRecord | None, bool]:
        """What is known of this model on this machine, measured first where nothing is; then another process is there.

        None: the process ended before it measured; the flag tells whether that was in its first decode.
        """
        parts = tuple(map(Path, load.cache.model_parts))
        tuner = Tuner(self._options.state_folder, parts, self._show_tuning, self._options.tuning_seconds)
        key = await tuner.key(machine, load)
        record = await tuner.known(key)
        if self._options.tune_again and self.tuned is None:
            record = None
        if record is not None and record.is_settled:
            return record, False
        try:
            record, probing = await tuner.measure(link, load, hello, key, record)
        finally:
            self.tuning_progress = None
        if record is not None:
            await link.close()
            await self._started()
        return record, probing

    def _show_tuning(self, fraction: float) -> None:
        self.tuning_progress = fraction

    async def _hello(self, link: WorkerLink) -> Hello:
        try:
            frame = await asyncio.wait_for(link.receive(), HELLO_SECONDS)
        except TimeoutError:
            frame = None
        if isinstance(frame, Hello):
            return frame
        code = await link.close()
        logger.error("The model process %s before it said anything. %s", how_it_ended(code), link.last_words)
        raise Refusal(
            Code.INTERNAL_ERROR, "The model process does not start. Install pocketserver[llama] again; see the log."
        )

    async def _until_loaded(self, link: WorkerLink) -> tuple[Loaded | None, bool]:
        """Follow a load to its end; the flag tells whether the probe had begun when the process ended."""
        last: FromWorker | None = None
        probing = False
        while True:
            last = await _next_sign(link, examining=isinstance(last, Examining))
            match last:
                case None:
                    return None, probing
                case Loaded():
                    return last, probing
                case LoadFailed(code=code, message=message):
                    raise Refusal(Code(code), message)
                case LoadProgress(fraction=fraction):
                    self.progress = fraction
                case Examining():
                    pass
                case Probing():
                    probing = True
                case _:
                    logger.warning("An unexpected frame while loading: %s", type(last).__name__)

    async def _crashed(self, link: WorkerLink, key: str, *, probing: bool, safe: bool) -> None:
        """Judge the end of a process that was loading. Returns when another attempt makes sense."""
        code = await link.ended()
        logger.warning("The model process %s while loading. %s", how_it_ended(code), link.last_words)
        if code == _KILLED:
            raise Refusal(
                Code.INSUFFICIENT_MEMORY,
                "The system ended the model process while it loaded, most likely for want of memory."
                " Start the server with a smaller --context, or choose a smaller model.",
            )
        if not probing or safe:
            raise Refusal(Code.INTERNAL_ERROR, "The model crashes while loading. Choose another model; see the log.")
        logger.warning("Repacked weights crash on this machine; the model is loaded in safe mode from now on.")
        await asyncio.to_thread(self._memory.remember, key)

    def _report(self, hello: Hello, loaded: Loaded, safe: bool) -> None:
        mode = " in safe mode" if safe else ""
        logger.info(
            "Model loaded in %.1f s%s: context %d, %s, llama.cpp %s",
            loaded.seconds,
            mode,
            loaded.context_size,
            loaded.runtime,
            hello.version,
        )
        if loaded.template_problem is not None:
            logger.warning("Chat template: %s", loaded.template_problem)


async def _next_sign(link: WorkerLink, *, examining: bool) -> FromWorker | None:
    """The next frame of a process that loads. Raises the Refusal that fits what it was doing when none came."""
    try:
        frame = await asyncio.wait_for(link.receive(), EXAMINE_SECONDS if examining else SILENCE_SECONDS)
    except TimeoutError:
        if examining:
            raise TEMPLATE_HANGS from None
        raise Refusal(Code.INTERNAL_ERROR, "The model did not load in time. Choose a smaller model.") from None
    if frame is None and examining:
        raise TEMPLATE_CRASHES
    return frame


def read_template(path: Path | None) -> str | None:
    """The text of a template file. Blocks. Raises Refusal(TEMPLATE_UNSUPPORTED)."""
    if path is None:
        return None
    try:
        if not path.is_file():  # a pipe would wait for ever, a device never end
            raise Refusal(
                Code.TEMPLATE_UNSUPPORTED, f"The chat template {path.name} is no file. Check --chat-template."
            )
        if path.stat().st_size > MAX_TEMPLATE_BYTES:
            raise Refusal(Code.TEMPLATE_UNSUPPORTED, f"The chat template {path.name} is larger than 256 KiB.")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Refusal(
            Code.TEMPLATE_UNSUPPORTED, f"The chat template {path.name} cannot be read. Check --chat-template."
        ) from error
