"""Rules: which request gets which scripted reply, and how often."""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from pocketserver.chat import GenerationRequest, JsonValue, Role
from pocketserver.errors import Code

MOST_RULES = 1000


class Match(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a request must be like; what is absent fits everything.

    `last_message` is text that the last message contains, `regex` is searched in it. System messages do not count as
    the last one while there is another: coding agents put a reminder behind what the user or a tool said.
    """

    model: str | None = None
    last_message: str | None = None
    regex: str | None = None
    has_tools: bool | None = None

    def fits(self, request: GenerationRequest, last: str) -> bool:
        """Whether a request is so. `last` is what `last_said` finds in it."""
        return (
            (self.model is None or self.model == request.model)
            and (self.has_tools is None or self.has_tools == bool(request.tools))
            and (self.last_message is None or self.last_message in last)
            and (self.regex is None or re.search(self.regex, last) is not None)
        )


def last_said(request: GenerationRequest) -> str:
    """What rules look at: the last message that is not the system's, or the raw prompt."""
    messages = request.messages
    if not messages:
        return request.prompt or ""
    for message in reversed(messages):
        if message.role is not Role.SYSTEM:
            return message.content
    return messages[-1].content


class RawToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token's bytes, which may be a piece of a character."""

    base64: str


class ScriptedCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call that the model makes. Arguments given as text are sent as they are, valid JSON or not."""

    name: str
    arguments: JsonValue = msgspec.field(default_factory=dict)

    @property
    def arguments_text(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else msgspec.json.encode(self.arguments).decode()


class RefusalReply(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An error in place of an answer."""

    code: Code
    message: str | None = None
    retry_after: float | None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scripted answer: at most one of `text`, `tokens`, `prose_tokens` and `echo`, beside calls and reasoning.

    `refusal` is an error (an object with a code) or a sentence with which the model declines. `finish_reason` overrides
    the reason that would be true.
    """

    text: str | None = None
    tokens: tuple[str | RawToken, ...] | None = None
    prose_tokens: Annotated[int, Meta(ge=0)] | None = None
    echo: bool = False
    tool_calls: tuple[ScriptedCall, ...] = ()
    reasoning: str | None = None
    refusal: str | RefusalReply | None = None
    finish_reason: Annotated[str, Meta(pattern="^(stop|length|tool_calls)$")] | None = None

    def token_bytes(self) -> list[bytes]:
        """The tokens of a reply that spells them out."""
        return [
            token.encode() if isinstance(token, str) else base64.b64decode(token.base64, validate=True)
            for token in self.tokens or ()
        ]


class NewRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule as it is asked for. Without `times` it holds until it is removed."""

    reply: Reply
    match: Match = Match()
    times: Annotated[int, Meta(ge=1)] | None = None


@dataclass(slots=True)
class Rule:
    """A rule in force; `used` counts the answers it gave."""

    id: str
    asked: NewRule
    used: int = 0

    @property
    def spent(self) -> bool:
        return self.asked.times is not None and self.used >= self.asked.times


class RuleBook:
    """Rules in force. Those with `times` come first, in the order they were added; then the newest without."""

    def __init__(self) -> None:
        self._rules: dict[str, Rule] = {}
        self._order: list[Rule] = []
        self._made = 0

    def __len__(self) -> int:
        return len(self._rules)

    def add(self, asked: NewRule) -> str:
        """Raises ValueError for a pattern or token that cannot be read, or when there are too many rules."""
        check_rule(asked)
        if len(self._rules) >= MOST_RULES:
            raise ValueError(f"there are {MOST_RULES} rules already; remove some first")
        self._made += 1
        rule = Rule(id=f"rule-{self._made}", asked=asked)
        self._rules[rule.id] = rule
        self._put_in_order()
        return rule.id

    def remove(self, rule_id: str) -> bool:
        found = self._rules.pop(rule_id, None) is not None
        self._put_in_order()
        return found

    def clear(self) -> None:
        self._rules.clear()
        self._put_in_order()
        self._made = 0

    def take(self, request: GenerationRequest) -> Reply | None:
        """The reply of the rule that fits, counted as used."""
        if not self._order:
            return None
        last = last_said(request)
        for rule in self._order:
            if rule.asked.match.fits(request, last):
                rule.used += 1
                if rule.spent:
                    self.remove(rule.id)
                return rule.asked.reply
        return None

    def _put_in_order(self) -> None:
        rules = [*self._rules.values()]
        self._order = [rule for rule in rules if rule.asked.times]
        self._order += [rule for rule in reversed(rules) if not rule.asked.times]

    def shown(self) -> list[Mapping[str, JsonValue]]:
        return [{"id": rule.id, "used": rule.used, **msgspec.to_builtins(rule.asked)} for rule in self._rules.values()]


def check_rule(asked: NewRule) -> None:
    """Raises ValueError for a pattern or token that cannot be read, and for a reply that says two things."""
    if asked.match.regex is not None:
        try:
            re.compile(asked.match.regex)
        except re.error as error:
            raise ValueError(f"match.regex is no regular expression: {error}") from error
    reply = asked.reply
    try:
        reply.token_bytes()
    except binascii.Error as error:
        raise ValueError(f"reply.tokens has a token that is not base64: {error}") from error
    said = [reply.text is not None, reply.tokens is not None, reply.prose_tokens is not None, reply.echo]
    if sum(said) > 1:
        raise ValueError("reply takes one of text, tokens, prose_tokens and echo")
