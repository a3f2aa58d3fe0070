"""Every figure that can be measured from outside, once, in one table: what it is, and how one sample of it is taken."""

import difflib
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from pocketserver.bench.client import Answer, Chat, ChatClient, UnmeasurableError
from pocketserver.bench.prompts import CUSTOMER_SCHEMA, Prompts, rewritable

COLD_TOKENS = 512
TYPICAL_PROMPT_TOKENS = 543
TYPICAL_ANSWER_TOKENS = 96
CONVERSATION_TOKENS = 2000
CANCELLED_TOKENS = 4000
REWRITTEN_TOKENS = 300
DECODED_TOKENS = 96
DEPTHS = (0, 512, 1000, 2000, 4000)
HANG_UP_SECONDS = (0.6, 0.2, 0.05)
"""How long a prompt is let run before the disconnect; shorter for servers that are through with it by then."""

_STORY = "Continue this story at length."
_SAMPLED: Mapping[str, object] = {"temperature": 0.7}
_GREEDY: Mapping[str, object] = {"temperature": 0}


class Better(Enum):
    HIGHER = "higher"
    LOWER = "lower"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measured value, and what helps to judge it (token counts and the like)."""

    value: float
    details: Mapping[str, float] = field(default_factory=dict)


Measure = Callable[[ChatClient, Prompts, int], Awaitable[Sample]]
"""Takes one sample; the number of the round makes its prompts new ones. Raises UnmeasurableError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """`name` is the word in JSON, `title` the one in tables."""

    name: str
    title: str
    unit: str
    better: Better
    measure: Measure


async def first_token_cold(client: ChatClient, prompts: Prompts, number: int) -> Sample:
    answer = await client.answer(prompts.single(f"cold/{number}", COLD_TOKENS, "Who is this about?"), 2, **_GREEDY)
    return Sample(value=answer.first_text_seconds, details=_counts(answer))


async def first_token_next_turn(client: ChatClient, prompts: Prompts, number: int) -> Sample:
    """The second of two requests of one conversation; the first one is not timed."""
    chat = prompts.conversation(f"turn/{number}", CONVERSATION_TOKENS)
    reply = await client.answer(chat, 12, **_GREEDY)
    chat += [{"role": "assistant", "content": reply.text}, {"role": "user", "content": "And what would you ask?"}]
    answer = await client.answer(chat, 2, **_GREEDY)
    return Sample(value=answer.first_text_seconds, details=_counts(answer))


async def make_known(client: ChatClient, prompts: Prompts) -> None:
    """Hold the conversation that `first_token_after_restart` goes on with."""
    await client.answer(prompts.conversation("known", CONVERSATION_TOKENS), 12, **_GREEDY)


async def first_token_after_restart(client: ChatClient, prompts: Prompts, number: int) -> Sample:
    """The next question of the conversation of `make_known`, which the server answered in an earlier life.

    The answer is left out: the conversation is known up to its last question.
    """
    known = prompts.conversation("known", CONVERSATION_TOKENS)
    chat = [*known[:-1], {"role": "user", "content": f"Tell me the name of story number {number + 1}."}]
    answer = await client.answer(chat, 2, **_GREEDY)
    return Sample(value=answer.first_text_seconds, details=_counts(answer))


async def decode(client: ChatClient, prompts: Prompts, number: int, *, depth: int) -> Sample:
    """Tokens a second behind the first one. The prompts of all depths begin alike and are the same in each round."""
    empty: Chat = [{"role": "user", "content": "Tell me a long story."}]
    chat: Chat = prompts.single("deep", depth, _STORY) if depth else empty
    answer = await _long(client, chat, DECODED_TOKENS, number)
    return Sample(value=answer.tokens_per_second, details=_counts(answer))


async def typical_turn(client: ChatClient, prompts: Prompts, number: int) -> Sample:
    """Whole time; where the model ended early, its missing tokens are added at the measured rate."""
    chat = prompts.single(f"typical/{number}", TYPICAL_PROMPT_TOKENS, _STORY)
    answer = await _long(client, chat, TYPICAL_ANSWER_TOKENS, number)
    missing = TYPICAL_ANSWER_TOKENS - answer.completion_tokens
    return Sample(value=answer.total_seconds + missing / answer.tokens_per_second, details=_counts(answer))


async def structured(client: ChatClient, _prompts: Prompts, number: int) -> Sample:
    """Characters a second of the whole time. `valid` is 1 when the answer is a JSON object with every field."""
    chat = [{"role": "user", "content": f"Invent customer number {number} as JSON."}]
    wanted = {"name": "customer", "strict": True, "schema": CUSTOMER_SCHEMA}
    answer = await client.answer(
        chat, 400, **_SAMPLED, seed=number, response_format={"type": "json_schema", "json_schema": wanted}
    )
    details = {**_counts(answer), "characters": len(answer.text), "valid": float(_is_customer(answer.text))}
    return Sample(value=len(answer.text) / answer.total_seconds, details=details)


async def cancel_to_free(client: ChatClient, prompts: Prompts, number: int) -> Sample:
    """From a disconnect inside a long prompt to the first token of the next request, waiting included."""
    for attempt, seconds in enumerate(HANG_UP_SECONDS):
        chat = prompts.single(f"cancel/{number}/{attempt}", CANCELLED_TOKENS, "Who is this about?")
        if await client.hang_up(chat, seconds):
            break
    else:
        raise UnmeasurableError(f"{CANCELLED_TOKENS} prompt tokens take less than {HANG_UP_SECONDS[-1]} s")
    started = time.perf_counter()
    answer = await client.answer([{"role": "user", "content": f"hi {number}"}], 1, **_GREEDY)
    trailing = answer.total_seconds - answer.first_text_seconds
    return Sample(value=time.perf_counter() - started - trailing, details=_counts(answer))


async def rewrite(client: ChatClient, _prompts: Prompts, number: int) -> Sample:
    """Characters a second of the whole time. `copied` tells how alike text and answer are, 1 being the same."""
    text, old, new = rewritable(number)
    chat = [{"role": "user", "content": f'Copy this text and write "{new}" in the place of "{old}":\n\n{text}'}]
    answer = await client.answer(chat, round(REWRITTEN_TOKENS * 1.2), **_GREEDY)
    copied = difflib.SequenceMatcher(None, text.split(), answer.text.split(), autojunk=False).ratio()
    return Sample(value=len(answer.text) / answer.total_seconds, details={**_counts(answer), "copied": copied})


def _figure(name: str, title: str, unit: str, better: Better, measure: Measure) -> Figure:
    return Figure(name=name, title=title, unit=unit, better=better, measure=measure)


def _decode_figure(depth: int) -> Figure:
    where = f"{depth:,} tokens deep" if depth else "empty context"
    return _figure(f"decode_{depth}", f"Decode, {where}", "tokens/s", Better.HIGHER, partial(decode, depth=depth))


AFTER_RESTART = _figure(
    "first_token_after_restart",
    f"First token, known conversation of {CONVERSATION_TOKENS:,} tokens after a restart",
    "s",
    Better.LOWER,
    first_token_after_restart,
)

FIGURES: tuple[Figure, ...] = (
    _figure(
        "first_token_cold", f"First token, new prompt of {COLD_TOKENS} tokens", "s", Better.LOWER, first_token_cold
    ),
    _figure(
        "first_token_next_turn",
        f"First token, next turn of a conversation of {CONVERSATION_TOKENS:,} tokens",
        "s",
        Better.LOWER,
        first_token_next_turn,
    ),
    *map(_decode_figure, DEPTHS),
    _figure(
        "typical_turn",
        f"Typical turn: {TYPICAL_PROMPT_TOKENS} tokens in, {TYPICAL_ANSWER_TOKENS} out, whole time",
        "s",
        Better.LOWER,
        typical_turn,
    ),
    _figure("structured", "Structured output, nested schema", "characters/s", Better.HIGHER, structured),
    _figure(
        "cancel_to_free",
        f"Disconnect inside a prompt of {CANCELLED_TOKENS:,} tokens to the next first token",
        "s",
        Better.LOWER,
        cancel_to_free,
    ),
    _figure(
        "rewrite", f"Text of {REWRITTEN_TOKENS} tokens with one word changed", "characters/s", Better.HIGHER, rewrite
    ),
)
"""In the order in which they are measured and shown; `AFTER_RESTART` needs a restart in between and stands alone."""


async def _long(client: ChatClient, chat: Chat, tokens: int, number: int) -> Answer:
    """An answer of at least half the tokens asked for; other seeds are tried when the model ends sooner."""
    for attempt in range(4):
        answer = await client.answer(chat, tokens, **_SAMPLED, seed=1000 * attempt + number)
        if answer.completion_tokens >= tokens // 2:
            return answer
    raise UnmeasurableError(f"the model ends its answers long before {tokens} tokens")


def _counts(answer: Answer) -> dict[str, float]:
    counts = {
        "prompt_tokens": answer.prompt_tokens,
        "cached_tokens": answer.cached_tokens,
        "completion_tokens": answer.completion_tokens,
    }
    return {name: count for name, count in counts.items() if count is not None}


def _is_customer(text: str) -> bool:
    try:
        found = json.loads(text)
    except ValueError:
        return False
    required = CUSTOMER_SCHEMA["required"]
    assert isinstance(required, list)
    return isinstance(found, dict) and set(found) == set(required)
