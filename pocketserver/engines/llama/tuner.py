"""Has a model measured in a process of its own, once for each machine, and remembers what came out."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from pocketserver.engines.llama.frames import Hello, Load, LoadFailed, LoadProgress, Measured, Probing, Tune, Tuned
from pocketserver.engines.llama.link import WorkerLink
from pocketserver.engines.llama.model_hash import HashMemory
from pocketserver.engines.llama.runtime import Runtime
from pocketserver.engines.llama.tuning import Choice, TuningRecord
from pocketserver.engines.llama.tuning_memory import TuningMemory, record_key
from pocketserver.errors import Code, Refusal

logger = logging.getLogger(__name__)

_SILENCE_SECONDS = 180.0  # a large model's first decode is one silence
_MEASURING_SECONDS = 120.0  # many times what measuring is allowed to take


class Tuner:
    """Measurements of one model. `on_progress` hears fractions from 0 to 1."""

    def __init__(
        self,
        state_folder: Path,
        model_parts: Sequence[Path],
        on_progress: Callable[[float], None],
        budget_seconds: float,
    ) -> None:
        self._memory = TuningMemory(state_folder)
        self._hashes = HashMemory(state_folder)
        self._parts = model_parts
        self._on_progress = on_progress
        self._budget_seconds = budget_seconds

    async def key(self, machine: str, load: Load) -> str:
        """Under which a record is kept: formats compare differently with other threads. Hashes the model once."""
        threads = "" if load.threads is None else f" {load.threads}/{load.threads_batch}"
        return await asyncio.to_thread(self._key, machine + threads)

    async def known(self, key: str) -> TuningRecord | None:
        return await asyncio.to_thread(self._memory.get, key)

    async def measure(
        self, link: WorkerLink, load: Load, hello: Hello, key: str, before: TuningRecord | None
    ) -> tuple[TuningRecord | None, bool]:
        """Measure with a process that has said hello; it is good for nothing else after.

        Without a record, the flag tells whether the process ended in its first decode. A process that ends while it
        measures is remembered, so that it is not tried again. Raises Refusal for a model that cannot be loaded.
        """
        logger.info("Measuring how this machine runs the model best. This takes some seconds, once.")
        link.send(Tune(load=load, budget_seconds=self._budget_seconds))
        record, probing, measuring = await self._follow(link)
        if record is None and not measuring:
            return None, probing
        if record is None:
            logger.warning("Measuring ended the model process; the usual values are used. %s", link.last_words)
            usual = Runtime(threads=1, threads_batch=1)
            record = TuningRecord(build="", safe_mode=not load.extra_buffers, usual=usual, crashed=True)
        attempts = 1 if before is None else before.attempts + 1
        if before is not None and before.busy < record.busy:
            record = before  # the quieter moment tells more
        record = msgspec.structs.replace(record, build=hello.build, attempts=attempts)
        await self._remember(key, record)
        return record, False

    async def _follow(self, link: WorkerLink) -> tuple[TuningRecord | None, bool, bool]:
        """The record if there is one, whether the first decode had begun, and whether measuring had."""
        probing = measuring = False
        while True:
            try:
                frame = await asyncio.wait_for(link.receive(), _MEASURING_SECONDS if measuring else _SILENCE_SECONDS)
            except TimeoutError:
                return None, False, True
            match frame:
                case None:
                    return None, probing, measuring
                case Tuned(record=record):
                    return record, False, True
                case LoadFailed() if measuring:
                    return None, False, True
                case LoadFailed(code=code, message=message):
                    raise Refusal(Code(code), message)
                case Probing():
                    probing = True
                case Measured(fraction=fraction):
                    measuring = True
                    self._on_progress(fraction)
                case LoadProgress():
                    pass
                case _:
                    logger.warning("An unexpected frame while measuring: %s", type(frame).__name__)

    async def _remember(self, key: str, record: TuningRecord) -> None:
        try:
            await asyncio.to_thread(self._memory.put, key, record)
        except OSError as error:
            logger.warning("The measurements cannot be kept, and will be made again: %s.", error)

    def _key(self, machine: str) -> str:
        known = self._hashes.known(self._parts) or self._hashes.compute(self._parts)
        return record_key(known, machine)


def with_choice(load: Load, choice: Choice) -> Load:
    """The load as it was chosen."""
    runtime = choice.runtime
    return msgspec.structs.replace(
        load,
        threads=runtime.threads,
        threads_batch=runtime.threads_batch,
        kv_type=runtime.kv_type,
        flash_attention=runtime.flash_attention,
        micro_batch=runtime.micro_batch,
        blas=runtime.blas,
        drafts=choice.drafts,
    )
