"""Requests to a llama engine and their whole answers, as the tests of this folder need them."""

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pocketserver.chat import Event, Finished, GenerationRequest, Message, Role, Sampling, TextDelta, TokenScore
from pocketserver.engines.llama.process import LlamaEngine, LlamaOptions

GREEDY = Sampling(temperature=0)
_numbers = itertools.count(1)


@asynccontextmanager
async def loaded(path: Path, folder: Path, **options: Any) -> AsyncIterator[LlamaEngine]:
    """An engine that answers, until the block is left. It decodes on one thread unless told otherwise."""
    values: dict[str, Any] = {"model_id": "model", "path": path, "state_folder": folder, "threads": 1}
    engine = LlamaEngine(LlamaOptions(**values | options))
    try:
        await engine.start()
        await engine.loaded()
        yield engine
    finally:
        await engine.close()


def asking(text: str, **fields: Any) -> GenerationRequest:
    """One user turn, greedy and short unless told otherwise."""
    fields = {"sampling": GREEDY, "max_tokens": 16, **fields}
    messages = (Message(role=Role.USER, content=text),)
    return GenerationRequest(id=f"request-{next(_numbers)}", model="model", messages=messages, **fields)


def completing(prompt: str, **fields: Any) -> GenerationRequest:
    """A raw prompt without a template."""
    fields = {"sampling": GREEDY, "max_tokens": 16, **fields}
    return GenerationRequest(id=f"request-{next(_numbers)}", model="model", prompt=prompt, **fields)


@dataclass
class Answer:
    events: list[Event] = field(default_factory=list)

    @property
    def deltas(self) -> list[TextDelta]:
        return [event for event in self.events if isinstance(event, TextDelta)]

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def scores(self) -> list[TokenScore]:
        return [score for delta in self.deltas for score in delta.scores]

    @property
    def finished(self) -> Finished:
        last = self.events[-1]
        assert isinstance(last, Finished)
        return last


async def answered(engine: LlamaEngine, request: GenerationRequest) -> Answer:
    """The whole answer."""
    answer = Answer()
    async with engine.generate(request) as stream:
        async for batch in stream:
            _extend(answer, batch)
    return answer


def _extend(answer: Answer, batch: Sequence[Event]) -> None:
    assert batch
    answer.events.extend(batch)
