"""Keeps what people typed from becoming a model's control tokens: nobody forges a turn by writing `<|im_end|>`.

Such a text is taken out of the messages before they are rendered, a placeholder of letters stands for it meanwhile, and
it comes back into the tokens as plain text. A conversation without such texts is rendered and split as ever.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from pocketserver.chat import Message, Role, ToolCall

_TYPED = frozenset({Role.USER, Role.TOOL})
_SHORTEST = 3
"""A control token of fewer characters is hardly more than a letter."""
_Trie: TypeAlias = "dict[str, _Trie]"


@dataclass(frozen=True, slots=True)
class Hidden:
    """The texts that were taken out of a conversation, and the word that their placeholders begin with."""

    word: str
    texts: Sequence[str]

    def pieces(self, prompt: str) -> Iterator[tuple[str, bool]]:
        """The rendered prompt in pieces; true for those in which marks are control tokens."""
        for number, piece in enumerate(re.split(rf"{self.word}(\d+)x", prompt)):
            if number % 2 == 0:
                yield piece, True
            else:
                yield self.texts[int(piece)], False

    def is_whole(self, prompt: str) -> bool:
        """False when the template has changed a placeholder, so that it could not be put back."""
        rest = re.sub(rf"{self.word}(\d+)x", lambda found: "" if int(found[1]) < len(self.texts) else self.word, prompt)
        return self.word not in rest.lower()


class TypedMarks:
    """Finds the texts of these control tokens. `hide` may be called from several threads."""

    def __init__(self, control_texts: Collection[str]) -> None:
        self._pattern = _any_of([text for text in control_texts if len(text) >= _SHORTEST])

    def hide(self, messages: Sequence[Message]) -> tuple[Sequence[Message], Hidden | None]:
        """The messages with placeholders; the same messages and None when there is nothing to hide.

        Looked at are the words of users and of tools, and the arguments of calls, which repeat them. What the
        application says as the system, and answers as the model wrote them, keep their marks.
        """
        if self._pattern is None or not any(map(self._pattern.search, _typed(messages))):
            return messages, None
        word, texts = _unused_word(messages), list[str]()

        def replaced(found: re.Match[str]) -> str:
            texts.append(found.group())
            return f"{word}{len(texts) - 1}x"

        hidden = [self._hidden(message, replaced) for message in messages]
        return hidden, Hidden(word, texts)

    def _hidden(self, message: Message, replaced: Callable[[re.Match[str]], str]) -> Message:
        assert self._pattern is not None
        if message.role in _TYPED:
            name = message.name and self._pattern.sub(replaced, message.name)
            content = self._pattern.sub(replaced, message.content)
            return msgspec.structs.replace(message, content=content, name=name)
        calls = tuple(
            msgspec.structs.replace(call, arguments=self._pattern.sub(replaced, _spelt_out(call)))
            for call in message.tool_calls
        )
        return msgspec.structs.replace(message, tool_calls=calls)


def _typed(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        if message.role in _TYPED:
            yield message.content
            yield message.name or ""
        yield from map(_spelt_out, message.tool_calls)


def _spelt_out(call: ToolCall) -> str:
    r"""The call's arguments with `\u003c` written as the character that it is."""
    if "\\u" not in call.arguments:
        return call.arguments
    try:
        return json.dumps(json.loads(call.arguments), ensure_ascii=False)
    except (ValueError, RecursionError):
        return call.arguments  # refused by its place when it is rendered


def _unused_word(messages: Sequence[Message]) -> str:
    """Letters that no message contains, whatever their case; the same for the same conversation."""
    everything = "\n".join(_everything(messages)).lower()
    word = "zqmark"
    while word in everything:
        word += "q"
    return word


def _everything(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        yield from (message.content, message.name or "", message.reasoning or "")
        yield from (call.arguments for call in message.tool_calls)


def _any_of(texts: Sequence[str]) -> re.Pattern[str] | None:
    """A pattern for the longest of these texts, as a tree: a long message costs no more with thousands of them."""
    if not texts:
        return None
    root: _Trie = {}
    for text in texts:
        node = root
        for char in text:
            node = node.setdefault(char, {})
        node[""] = {}
    return re.compile(_pattern(root))


def _pattern(node: Mapping[str, "_Trie"]) -> str:
    branches = []
    for char, after in sorted(node.items()):
        if char:
            tail = char
            while len(after) == 1 and "" not in after:  # a run of letters, so that long texts nest no groups
                ((char, after),) = after.items()  # noqa: PLW2901
                tail += char
            branches.append(re.escape(tail) + _pattern(after))
    if not branches:
        return ""
    group = f"(?:{'|'.join(branches)})"
    return f"{group}?" if "" in node else group
