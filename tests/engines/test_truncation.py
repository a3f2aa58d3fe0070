"""Dropping the oldest turns: what stays, what goes together, and that no more goes than must."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketserver.chat import Message, Role, ToolCall
from pocketserver.engines.truncation import newest_that_fit
from pocketserver.errors import Code, Refusal

SYSTEM = Message(role=Role.SYSTEM, content="s" * 10)


def user(number: int, length: int = 10) -> Message:
    return Message(role=Role.USER, content=f"u{number}".ljust(length, "."))


def answer(number: int, length: int = 10) -> Message:
    return Message(role=Role.ASSISTANT, content=f"a{number}".ljust(length, "."))


def call(*ids: str) -> Message:
    return Message(role=Role.ASSISTANT, tool_calls=tuple(ToolCall(id=id_, name="f", arguments="{}") for id_ in ids))


def result(id_: str, length: int = 10) -> Message:
    return Message(role=Role.TOOL, tool_call_id=id_, content="r".ljust(length, "."))


async def count(messages: Sequence[Message]) -> int:
    """One token for each character, and two for each message and call."""
    return sum(len(message.content) + 2 + 2 * len(message.tool_calls) for message in messages)


async def shortened(messages: Sequence[Message], limit: int) -> list[Message]:
    return list(await newest_that_fit(messages, count, context_size=limit + 1))


async def test_what_fits_is_left_alone() -> None:
    messages = [SYSTEM, user(1), answer(1), user(2)]
    assert await shortened(messages, await count(messages)) == messages


async def test_the_oldest_turns_go_and_as_many_as_fit_stay() -> None:
    turns = [message for number in range(12) for message in (user(number), answer(number))]
    messages = [SYSTEM, *turns, user(99)]
    assert await shortened(messages, 12 * 8) == [SYSTEM, *turns[-6:], user(99)]
    assert await shortened(messages, 12 * 9) == [SYSTEM, *turns[-6:], user(99)]
    assert await shortened(messages, 12 * 10) == [SYSTEM, *turns[-8:], user(99)]


async def test_system_messages_stay_wherever_they_stand() -> None:
    later = Message(role=Role.SYSTEM, content="later")
    messages = [SYSTEM, user(1), answer(1), later, user(2), answer(2), user(3)]
    assert await shortened(messages, 35) == [SYSTEM, later, user(3)]


async def test_a_tool_exchange_goes_with_its_turn() -> None:
    turn = [user(1), call("x", "y"), result("x"), result("y"), answer(1)]
    messages = [SYSTEM, *turn, user(2), answer(2), user(3)]
    assert await shortened(messages, await count(messages) - 1) == [SYSTEM, user(2), answer(2), user(3)]


async def test_in_a_long_run_of_tools_the_oldest_exchanges_go_and_the_question_stays() -> None:
    exchanges = [[call(f"{number}"), result(f"{number}")] for number in range(10)]
    messages = [SYSTEM, user(1), *(message for exchange in exchanges for message in exchange)]
    kept = await shortened(messages, 24 + 3 * 16)
    assert kept == [SYSTEM, user(1), *(message for exchange in exchanges[-3:] for message in exchange)]


async def test_parallel_results_are_never_torn_apart() -> None:
    messages = [user(1), call("a", "b"), result("a"), result("b"), call("c"), result("c")]
    assert await shortened(messages, 30) == [user(1), call("c"), result("c")]


@pytest.mark.parametrize(
    "messages",
    [
        [SYSTEM, user(1), answer(1), user(2, 200)],
        [Message(role=Role.SYSTEM, content="s" * 200), user(1), answer(1), user(2)],
        [user(1, 200)],
        [user(1), call("a"), result("a", 200)],
    ],
)
async def test_what_cannot_be_shortened_is_refused_with_both_numbers(messages: list[Message]) -> None:
    with pytest.raises(Refusal, match=r"maximum context length is 101 tokens.* \d+ tokens") as caught:
        await shortened(messages, 100)
    assert caught.value.code is Code.CONTEXT_LENGTH_EXCEEDED
    assert caught.value.details["prompt_tokens"] > 100
    assert caught.value.details["context_size"] == 101


async def test_a_conversation_without_a_user_keeps_its_last_message() -> None:
    assert await shortened([answer(1), answer(2), answer(3)], 15) == [answer(3)]


async def test_counting_is_done_a_few_times_only() -> None:
    counted = 0

    async def counting(messages: Sequence[Message]) -> int:
        nonlocal counted
        counted += 1
        return await count(messages)

    messages = [message for number in range(1000) for message in (user(number), answer(number))]
    await newest_that_fit([*messages, user(1)], counting, context_size=5000)
    assert counted <= 14


KINDS = st.lists(st.sampled_from(["system", "user", "answer", "tools"]), min_size=1, max_size=25)


@given(kinds=KINDS, limit=st.integers(20, 300))
async def test_whatever_stays_is_whole_in_order_and_fits(kinds: list[str], limit: int) -> None:
    messages: list[Message] = []
    for number, kind in enumerate(kinds):
        rules = Message(role=Role.SYSTEM, content="rules")
        made = {"system": [rules], "user": [user(number)], "answer": [answer(number)]}
        tools = [call(f"{number}a", f"{number}b"), result(f"{number}a"), result(f"{number}b")]
        messages += made.get(kind, tools)
    try:
        kept = await shortened(messages, limit)
    except Refusal:
        return
    assert await count(kept) <= limit
    numbers = [next(index for index, one in enumerate(messages) if one is message) for message in kept]
    assert numbers == sorted(numbers)
    assert [m for m in messages if m.role is Role.SYSTEM] == [m for m in kept if m.role is Role.SYSTEM]
    assert [m for m in messages if m.role is Role.USER][-1:] == [m for m in kept if m.role is Role.USER][-1:]
    calls = {one.id for message in kept for one in message.tool_calls}
    assert calls == {message.tool_call_id for message in kept if message.role is Role.TOOL}
