"""Asks a short-lived process about models that are not loaded: what they can do, how many tokens a request takes.

The process has a vocabulary and a template but no weights. A template is a stranger's program: it is the process that
hangs, swells or dies, and every question ends in an answer or a Refusal.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from pocketserver.chat import Explanation, GenerationRequest
from pocketserver.engines.llama.capabilities import Capabilities, CapabilityMemory, capability_key
from pocketserver.engines.llama.frames import (
    Capable,
    Count,
    Counted,
    Examine,
    Examining,
    Explain,
    Explained,
    FrameError,
    FromWorker,
    Hello,
    LoadFailed,
    Refused,
)
from pocketserver.engines.llama.link import WorkerLink, how_it_ended
from pocketserver.engines.llama.memory import DEFAULT_CONTEXT
from pocketserver.engines.llama.supervisor import HELLO_SECONDS, TEMPLATE_CRASHES, TEMPLATE_HANGS, read_template
from pocketserver.errors import Code, Refusal
from pocketserver.models.gguf import BadModelFile, GgufMetadata, read_metadata

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 30.0
"""All probes of a template have 5 s of processor time together, on a machine that others may be using."""
FromWorkerT = TypeVar("FromWorkerT", bound=FromWorker)


class Examiner:
    """One question at a time; others wait. What models can do is remembered in the state folder."""

    def __init__(self, state_folder: Path | None, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._state_folder = state_folder
        self._answer_seconds = answer_seconds
        self._memory = CapabilityMemory(state_folder) if state_folder else None
        self._turn = asyncio.Lock()
        self.worker_pid: int | None = None
        """The process that is looking at a template at this moment."""

    async def examined(self, path: Path, chat_template: Path | None = None) -> Capabilities:
        """What the model in this file can do, with this template in place of its own.

        Raises Refusal: `model_not_loaded` for a file that is no model, `template_unsupported` for a template that
        hangs or ends the process, `internal_error` when the process does not start.
        """
        metadata, template, key = await asyncio.to_thread(_facts, path, chat_template)
        known = await asyncio.to_thread(self._memory.known, key) if self._memory else None
        if known is not None:
            return known
        async with self._examining(metadata, template) as (_, found):
            pass
        capabilities = Capabilities(
            completion=not metadata.is_encoder,
            embedding=metadata.is_encoder,
            chat_template=found.has_template,
            tools=found.tools and not metadata.is_encoder,
            thinking=found.thinking and not metadata.is_encoder,
            insert=found.insert,
            template_problem=found.template_problem,
        )
        if self._memory:
            await asyncio.to_thread(self._memory.remember, key, capabilities)
        return capabilities

    async def count(self, path: Path, request: GenerationRequest, chat_template: Path | None = None) -> int:
        """Prompt tokens of a request to this model, as the loaded model would count. Raises Refusal as `examined` does.

        Also raises what the engine's `count` raises: a conversation that the template does not take, tools without a
        syntax, a text that no context of the trained length could hold.
        """
        metadata, template, _ = await asyncio.to_thread(_facts, path, chat_template)
        async with self._examining(metadata, template) as (link, _):
            _ask(link, Count(ticket=1, request=request))
            counted = await self._next(link, Counted)
        return counted.tokens

    async def explain(self, path: Path, request: GenerationRequest, chat_template: Path | None = None) -> Explanation:
        """What this model would make of a request; see `Explaining`."""
        metadata, template, _ = await asyncio.to_thread(_facts, path, chat_template)
        async with self._examining(metadata, template) as (link, _):
            _ask(link, Explain(ticket=1, request=request))
            explained = await self._next(link, Explained)
        return explained.explanation

    @asynccontextmanager
    async def _examining(
        self, metadata: GgufMetadata, template: str | None
    ) -> AsyncIterator[tuple[WorkerLink, Capable]]:
        """A process that has looked at a model and waits for questions; it is gone when the block is left."""
        async with self._turn:
            link = await WorkerLink.start()
            try:
                await self._next(link, Hello, HELLO_SECONDS)
                link.send(self._question(metadata, template))
                await self._next(link, Examining)
                self.worker_pid = link.pid
                yield link, await self._next(link, Capable)
            finally:
                self.worker_pid = None
                await asyncio.shield(link.close())

    def _question(self, metadata: GgufMetadata, template: str | None) -> Examine:
        return Examine(
            path=str(metadata.path),
            context_size=metadata.context_length or DEFAULT_CONTEXT,
            template=template,
            state_folder=str(self._state_folder) if self._state_folder else None,
        )

    async def _next(self, link: WorkerLink, kind: type[FromWorkerT], seconds: float | None = None) -> FromWorkerT:
        """The next frame, which must be of this kind; anything else is the Refusal that it stands for."""
        try:
            frame = await asyncio.wait_for(link.receive(), seconds or self._answer_seconds)
        except TimeoutError:
            raise TEMPLATE_HANGS if kind in (Capable, Counted, Explained) else _DOES_NOT_START from None
        match frame:
            case None:
                code = await link.ended()
                logger.warning("The process that examines a model %s. %s", how_it_ended(code), link.last_words)
                raise TEMPLATE_CRASHES if kind in (Capable, Counted, Explained) else _DOES_NOT_START
            case LoadFailed(code=code_name, message=message):
                raise Refusal(Code(code_name), message)
            case Refused():
                raise Refusal(Code(frame.code), frame.message, param=frame.param, details=dict(frame.details))
            case _ if isinstance(frame, kind):
                return frame
            case _:
                raise _DOES_NOT_START


_DOES_NOT_START = Refusal(
    Code.INTERNAL_ERROR, "The process that examines models does not start. Install pocketserver[llama] again."
)


def _facts(path: Path, chat_template: Path | None) -> tuple[GgufMetadata, str | None, str]:
    """Blocks. Raises Refusal."""
    try:
        metadata = read_metadata(path)
        template = read_template(chat_template)
        return metadata, template, capability_key(metadata.parts, template)
    except BadModelFile as error:
        raise Refusal(Code.MODEL_NOT_LOADED, error.without_folder()) from error
    except OSError as error:
        raise Refusal(Code.MODEL_NOT_LOADED, f"{path.name} cannot be read: {error.strerror}.") from error


def _ask(link: WorkerLink, frame: Count | Explain) -> None:
    try:
        link.send(frame)
    except FrameError as error:
        raise Refusal(
            Code.INVALID_PARAMETER,
            "The request cannot be passed to the model: it nests too deeply or holds a number that is too large.",
        ) from error
