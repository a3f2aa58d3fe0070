"""`context` of `/api/generate`: the conversation so far, as numbers that the client sends back.

Ollama's are token ids. Ours are the characters of the conversation and a mark before each turn, so that they survive
a restart, another context size and another tokenizer, and nobody has to keep anything. Clients only pass them on.
"""

from collections.abc import Iterator, Sequence

from pocketserver.chat import JsonValue, Message, Role
from pocketserver.wire.json_body import invalid

MAX_MESSAGES = 10_000
_FIRST_MARK = 0x110000  # the first number that is no character
_ROLES = (Role.SYSTEM, Role.USER, Role.ASSISTANT)
_SURROGATES = range(0xD800, 0xE000)


def encode(messages: Sequence[Message]) -> list[int]:
    return [number for message in messages for number in _numbers(message)]


def _numbers(message: Message) -> Iterator[int]:
    yield _FIRST_MARK + _ROLES.index(message.role)
    yield from map(ord, message.content)


def decode(given: Sequence[JsonValue] | None) -> tuple[Message, ...]:
    """The conversation in these numbers; what stands before the first mark is a user's. Raises Refusal otherwise."""
    role, text = Role.USER, ""
    messages: list[Message] = []
    for number in (*map(_checked, given or ()), _FIRST_MARK):
        if number < _FIRST_MARK:
            text += chr(number)
            continue
        if text:
            messages.append(Message(role=role, content=text))
        if len(messages) > MAX_MESSAGES:
            raise invalid("context", f"context has more than {MAX_MESSAGES} turns; begin a new conversation")
        role, text = _ROLES[number - _FIRST_MARK], ""
    return tuple(messages)


def _checked(number: JsonValue) -> int:
    if type(number) is not int or not 0 <= number < _FIRST_MARK + len(_ROLES) or number in _SURROGATES:
        raise invalid("context", "context must be the list of numbers that an earlier answer carried")
    return number
