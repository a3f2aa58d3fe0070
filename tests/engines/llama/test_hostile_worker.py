"""Hostile chat templates through the real model process: the engine lives on, and each ends in a clear error."""

import asyncio
from pathlib import Path

import pytest

from pocketserver.engines.llama.process import LlamaEngine
from pocketserver.engines.llama.template import ChatTemplate
from pocketserver.errors import Code, Refusal
from tests.engines.llama.asking import answered, asking, completing
from tests.engines.llama.conftest import MakeEngine
from tests.engines.llama.hostile_templates import KINDS, outcome, templates

pytestmark = pytest.mark.real_model

LOADED = len(KINDS)
"""So many are loaded as a model's own template, one of each kind; the others are branches of one template."""
BRANCHES = 44


async def test_a_hostile_template_ends_in_a_clear_error_and_raw_prompts_are_still_answered(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    for number, source in enumerate(templates(LOADED, seed=11)):
        file = tmp_path / f"{number}.jinja"
        file.write_text(source, encoding="utf-8")
        engine = make_engine(chat_template=file, context=256)
        await engine.start()
        await engine.loaded()
        await answered_or_refused(engine, "hello")
        assert (await answered(engine, completing("Once", max_tokens=1))).finished.usage.completion_tokens == 1
        await engine.close()


async def test_hostile_branches_of_a_template_are_refused_one_by_one(make_engine: MakeEngine, tmp_path: Path) -> None:
    """Sources that do not even compile would spoil the whole file, so each is tried alone first."""
    sources = await asyncio.to_thread(fit_for_branches)
    assert len(sources) == BRANCHES
    branches = "".join(
        f"{{% {'if' if number == 0 else 'elif'} messages[0].content == 'case {number}' %}}{source}"
        for number, source in enumerate(sources)
    )
    file = tmp_path / "branches.jinja"
    file.write_text(branches + "{% else %}{{ messages[0].content }}{% endif %}", encoding="utf-8")
    engine = make_engine(chat_template=file, context=256)
    await engine.start()
    await engine.loaded()

    refused = [await answered_or_refused(engine, f"case {number}") for number in range(BRANCHES)]

    assert Code.TEMPLATE_UNSUPPORTED in refused
    assert (await answered(engine, asking("Still there?", max_tokens=2))).deltas


def fit_for_branches() -> list[str]:
    """Templates that compile; of those that run until their time is up only the first two, for each costs seconds."""
    found: list[str] = []
    slow = 0
    for source in templates(400, seed=23):
        tried = outcome(source, 0.05)
        is_slow = "takes longer" in str(tried.get("message"))
        slow += is_slow
        if ChatTemplate(source).problem is None and "{% extends" not in source and not (is_slow and slow > 2):
            found.append(source)
    return found[:BRANCHES]


async def answered_or_refused(engine: LlamaEngine, text: str) -> Code | None:
    """The code of the refusal, or None for an answer. Nothing else may happen."""
    refusal = await refusal_of(engine, text)
    if refusal is None:
        return None
    assert refusal.code in {Code.TEMPLATE_UNSUPPORTED, Code.CONTEXT_LENGTH_EXCEEDED, Code.INVALID_PARAMETER}
    assert len(refusal.message) < 900
    return refusal.code


async def refusal_of(engine: LlamaEngine, text: str) -> Refusal | None:
    try:
        await answered(engine, asking(text, max_tokens=1))
    except Refusal as refusal:
        return refusal
    return None
