"""Shortens a conversation to a number of tokens, for wire APIs whose clients ask for that instead of an error.

Pure: messages and a way to count them go in, the messages that stay come out.
"""

from collections.abc import Awaitable, Callable, Sequence

from pocketserver.chat import Message, Role
from pocketserver.errors import Code, Refusal

CountMessages = Callable[[Sequence[Message]], Awaitable[int]]
"""Prompt tokens that these messages take, rendered with everything else of the request."""


async def newest_that_fit(
    messages: Sequence[Message], count: CountMessages, *, context_size: int, answer_tokens: int = 1
) -> tuple[Message, ...]:
    """The messages without as many of the oldest turns as it takes to leave `answer_tokens` of the context free.

    What always stays: every system message, the last user message, and what the model is to answer now (the last
    message with its tool exchange). A tool call and its results go or stay together, and so do a user's message and its
    answers, except behind the last user message, where exchange after exchange goes. Counts about log2(turns) times.
    Raises Refusal(CONTEXT_LENGTH_EXCEEDED) when even the least is too long, and what `count` raises.
    """
    limit_tokens = context_size - answer_tokens
    if await count(messages) <= limit_tokens:
        return tuple(messages)
    droppable = _droppable(messages)
    low, high = 1, len(droppable)
    least = _without(messages, droppable)
    least_tokens = await count(least)
    if least_tokens > limit_tokens:
        raise _too_long(least_tokens, context_size)
    while low < high:
        middle = (low + high) // 2
        if await count(_without(messages, droppable[:middle])) <= limit_tokens:
            high = middle
        else:
            low = middle + 1
    return _without(messages, droppable[:low])


def _droppable(messages: Sequence[Message]) -> list[list[int]]:
    """Groups of message numbers that go together, oldest first."""
    asked = max((index for index, message in enumerate(messages) if message.role is Role.USER), default=-1)
    earlier = [index for index in range(asked) if messages[index].role is not Role.SYSTEM]
    later = [index for index in range(asked + 1, len(messages)) if messages[index].role is not Role.SYSTEM]
    turns = _grouped(earlier, lambda index: messages[index].role is Role.USER)
    exchanges = _grouped(later, lambda index: messages[index].role is not Role.TOOL)
    return [*turns, *exchanges[:-1]]


def _grouped(indices: Sequence[int], begins: Callable[[int], bool]) -> list[list[int]]:
    """Neighbours together; a group begins at each index that `begins` names, and at the first."""
    groups: list[list[int]] = []
    for index in indices:
        if begins(index) or not groups:
            groups.append([])
        groups[-1].append(index)
    return groups


def _without(messages: Sequence[Message], groups: Sequence[Sequence[int]]) -> tuple[Message, ...]:
    dropped = {index for group in groups for index in group}
    return tuple(message for index, message in enumerate(messages) if index not in dropped)


def _too_long(tokens: int, context_size: int) -> Refusal:
    return Refusal(
        Code.CONTEXT_LENGTH_EXCEEDED,
        f"This model's maximum context length is {context_size} tokens. However, your system prompt and last message"
        f" alone resulted in {tokens} tokens. Please shorten them or start the server with a larger --context.",
        param="messages",
        details={"prompt_tokens": tokens, "context_size": context_size},
    )
