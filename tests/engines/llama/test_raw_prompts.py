"""Raw prompts of the real model: as text, as tokens, echoed with scores, read without an answer, around a gap."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from pocketserver.chat import FinishReason
from pocketserver.engines.llama.process import LlamaEngine, LlamaOptions
from pocketserver.errors import Code, Refusal
from tests.engines.llama.asking import answered, asking, completing
from tests.engines.llama.recurrent_model import write_recurrent_model

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.real_model]

TEXT = "The capital of France is Paris. The capital of Italy is"


def _joined(pieces: Sequence[bytes]) -> str:
    return b"".join(pieces).decode()


async def test_tokens_answer_as_their_text_does(engine: LlamaEngine) -> None:
    given = (504, 3575, 282, 4649, 314)
    tokens = await answered(engine, completing("", prompt_tokens=given, echo=True))
    text = tokens.deltas[0].text
    same = await answered(engine, completing(text, echo=True))

    assert text == "The capital of France is"
    assert tokens.finished.usage.prompt_tokens == same.finished.usage.prompt_tokens == len(given)
    assert tokens.text == same.text != text


@pytest.mark.parametrize("token", [-1, 49152, 10**9])
async def test_a_token_that_the_vocabulary_has_not_is_refused(engine: LlamaEngine, token: int) -> None:
    with pytest.raises(Refusal, match=r"from 0 to 49151") as caught:
        await answered(engine, completing("", prompt_tokens=(1, token)))
    assert (caught.value.code, caught.value.param) == (Code.INVALID_PARAMETER, "prompt")


async def test_an_echo_is_the_prompt_and_then_the_same_answer(engine: LlamaEngine) -> None:
    plain = await answered(engine, completing(TEXT))
    echoed = await answered(engine, completing(TEXT, echo=True))

    assert echoed.text == TEXT + plain.text
    assert echoed.deltas[0].tokens == 0
    assert echoed.finished.usage.completion_tokens == plain.finished.usage.completion_tokens


async def test_a_scored_echo_has_an_entry_for_each_token_of_the_prompt(engine: LlamaEngine) -> None:
    plain = await answered(engine, completing(TEXT, top_logprobs=2))
    echoed = await answered(engine, completing(TEXT, echo=True, top_logprobs=2))
    count = echoed.finished.usage.prompt_tokens
    of_prompt, of_answer = echoed.scores[:count], echoed.scores[count:]

    assert _joined([score.bytes for score in of_prompt]) == TEXT
    assert [score.is_first for score in of_prompt] == [True, *[False] * (count - 1)]
    assert all(score.logprob < 0 and len(score.top) == 2 for score in of_prompt[1:])
    assert [score.token for score in of_answer] == [score.token for score in plain.scores]
    assert [score.logprob for score in of_answer] == pytest.approx([score.logprob for score in plain.scores], abs=0.05)
    paris = next(score for score in of_prompt if score.token == " Paris")
    assert paris.logprob > -3


async def test_the_score_of_a_prompt_is_what_the_model_gave_while_writing_it(engine: LlamaEngine) -> None:
    written = await answered(engine, completing(TEXT, top_logprobs=0, max_tokens=4))
    read = await answered(engine, completing(TEXT + written.text, echo=True, top_logprobs=0, max_tokens=0))

    assert [score.token for score in read.scores[-4:]] == [score.token for score in written.scores]
    assert [s.logprob for s in read.scores[-4:]] == pytest.approx([s.logprob for s in written.scores], abs=0.05)


async def test_no_tokens_wanted_reads_the_prompt_and_says_nothing(engine: LlamaEngine) -> None:
    silent = await answered(engine, completing(TEXT, max_tokens=0))

    assert silent.text == ""
    assert silent.finished.reason is FinishReason.LENGTH
    assert silent.finished.usage.completion_tokens == 0


async def test_a_scored_prompt_longer_than_a_batch_leaves_the_context_right(engine: LlamaEngine) -> None:
    long = "One two three four five six seven eight nine ten. " * 60
    plain = await answered(engine, completing(long, max_tokens=8))
    scored = await answered(engine, completing(long, max_tokens=8, echo=True, top_logprobs=0))

    assert len(scored.scores) == scored.finished.usage.prompt_tokens + len(plain.deltas)
    assert scored.text == long + plain.text


async def test_a_model_without_marks_for_a_gap_says_that_it_cannot_insert(engine: LlamaEngine) -> None:
    with pytest.raises(Refusal, match="model does not support insert") as caught:
        await answered(engine, completing("def add(", suffix="return a + b"))
    assert (caught.value.code, caught.value.param) == (Code.INVALID_PARAMETER, "suffix")


async def test_a_model_with_marks_fills_a_gap_between_texts_in_which_marks_are_text(tmp_path: Path) -> None:
    mark = "<|fim_middle|>"
    path = write_recurrent_model(tmp_path / "gap.gguf", ("<|fim_prefix|>", "<|fim_suffix|>", mark))
    engine = LlamaEngine(LlamaOptions(model_id="gap", path=path, state_folder=tmp_path, context=512, threads=1))
    await engine.start()
    try:
        await engine.loaded()
        assert await engine.count(completing("ab")) == 2
        assert await engine.count(completing("ab", suffix="cde")) == 2 + 3 + 3
        assert await engine.count(completing(mark)) == 1
        assert await engine.count(completing(mark, suffix="c")) == len(mark) + 1 + 3
        answer = await answered(engine, completing("ab", suffix="cde"))
        scored = await answered(engine, completing("abc", echo=True, top_logprobs=1, max_tokens=2))
    finally:
        await engine.close()

    assert answer.finished.usage.prompt_tokens == 8
    assert "fim" not in answer.text
    assert [score.token for score in scored.scores[:3]] == ["a", "b", "c"]


async def test_a_raw_prompt_that_is_too_long_is_named_by_its_own_field(engine: LlamaEngine) -> None:
    with pytest.raises(Refusal, match="your prompt resulted in") as caught:
        await answered(engine, completing("", prompt_tokens=(504,) * 9000))
    assert (caught.value.code, caught.value.param) == (Code.CONTEXT_LENGTH_EXCEEDED, "prompt")
    with pytest.raises(Refusal, match="your messages resulted in at least"):
        await engine.count(asking("word " * 400_000))
