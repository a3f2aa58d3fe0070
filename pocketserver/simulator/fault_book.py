"""Faults in force, and which of them strikes a request."""

import difflib
import random
import re
from dataclasses import dataclass, field

import msgspec

from pocketserver.chat import JsonValue
from pocketserver.errors import Code, Refusal, UsageError
from pocketserver.simulator.faults import FAULTS, SENTENCES
from pocketserver.simulator.words import FaultMatch, NewFault

MOST_FAULTS = 1000
_SYSTEM_ROLES = ("system", "developer")
_TEXT_KEYS = ("content", "output", "text")
"""Where the APIs keep text: messages and Anthropic's results, OpenAI's results, parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request as far as a fault looks at it. `document` is its body, an empty object when that is no JSON object."""

    method: str
    path: str
    document: dict[str, JsonValue]

    @property
    def last_message(self) -> str:
        """What was said last, whatever the API: the last of `messages` or `input`, or `prompt`.

        System messages do not count while there is another, as for rules.
        """
        given = self.document.get("messages") or self.document.get("input") or self.document.get("prompt") or ""
        if not isinstance(given, list):
            return _text(given)
        said = (one for one in reversed(given) if not (isinstance(one, dict) and one.get("role") in _SYSTEM_ROLES))
        return _text(next(said, given[-1]))


def _text(given: JsonValue) -> str:
    """The text of a message, an item, a result of a tool, or of one's parts."""
    if isinstance(given, list):
        return "".join(_text(part) for part in given)
    if isinstance(given, dict):
        return _text(next((given[key] for key in _TEXT_KEYS if given.get(key) is not None), ""))
    return str(given)


@dataclass(slots=True)
class ArmedFault:
    """A fault in force; `seen` counts requests that matched, `struck` those it hit."""

    id: str
    asked: NewFault
    chosen: random.Random
    seen: int = 0
    struck: int = 0

    @property
    def spent(self) -> bool:
        return self.asked.when.next is not None and self.struck >= self.asked.when.next

    def due(self) -> bool:
        """Count a request that matches; whether it is one to strike."""
        self.seen += 1
        when = self.asked.when
        if when.every is not None and self.seen % when.every:
            return False
        return when.probability is None or self.chosen.random() < when.probability


@dataclass(slots=True)
class FaultBook:
    """At most one fault strikes a request: the first in order of adding, so that several in a row make a sequence."""

    seed: int
    _faults: dict[str, ArmedFault] = field(default_factory=dict)
    _made: int = 0

    def __len__(self) -> int:
        return len(self._faults)

    def add(self, asked: NewFault) -> str:
        """Raises UsageError for a name that is none, a field that is missing, or too many faults."""
        check_fault(asked)
        if len(self._faults) >= MOST_FAULTS:
            raise UsageError(f"There are {MOST_FAULTS} faults already. Remove some first.")
        self._made += 1
        fault_id = f"fault-{self._made}"
        # A seed of its own for each fault: others that come and go do not change what it does.
        chosen = random.Random(f"{self.seed}:{self._made}")  # noqa: S311 - repeatable on purpose
        self._faults[fault_id] = ArmedFault(fault_id, asked, chosen)
        return fault_id

    def remove(self, fault_id: str) -> bool:
        return self._faults.pop(fault_id, None) is not None

    def clear(self) -> None:
        self._faults.clear()
        self._made = 0

    def strike(self, request: Asked) -> ArmedFault | None:
        """The fault that this request meets, counted."""
        struck = None
        for fault in [*self._faults.values()]:
            if matches(fault.asked.when.match or FaultMatch(), request) and fault.due() and struck is None:
                struck = fault
                fault.struck += 1
                if fault.spent:
                    del self._faults[fault.id]
        return struck

    def shown(self) -> list[dict[str, JsonValue]]:
        return [
            {"id": fault.id, "seen": fault.seen, "struck": fault.struck, **msgspec.to_builtins(fault.asked)}
            for fault in self._faults.values()
        ]


def matches(match: FaultMatch, request: Asked) -> bool:
    document = request.document
    if match.path is None and match.method is None and request.method != "POST":
        return False
    checks = (
        (match.path, request.path),
        (match.method, request.method),
        (match.model, document.get("model")),
        (match.has_tools, bool(document.get("tools"))),
        (match.stream, bool(document.get("stream"))),
    )
    if any(wanted is not None and wanted != given for wanted, given in checks):
        return False
    last = request.last_message if match.last_message is not None or match.regex is not None else ""
    return (match.last_message is None or match.last_message in last) and (
        match.regex is None or re.search(match.regex, last) is not None
    )


def check_fault(asked: NewFault) -> None:
    """Raises UsageError, one line, for a fault that means nothing."""
    kind = FAULTS.get(asked.fault)
    if kind is None:
        near = difflib.get_close_matches(asked.fault, FAULTS, n=3, cutoff=0.5)
        meant = f" Did you mean {' or '.join(near)}?" if near else ""
        raise UsageError(
            f"There is no fault {asked.fault[:80]!r}.{meant} `pocketserver sim faults` lists those that exist."
        )
    missing = [name for name in kind.needs if getattr(asked, name) is None]
    if missing:
        raise UsageError(f"The fault {asked.fault} needs `{missing[0]}`.")
    pattern = asked.when.match.regex if asked.when.match else None
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise UsageError(f"when.match.regex is no regular expression: {error}.") from error


def code_of(asked: NewFault) -> Code:
    """The error code that a fault answers with."""
    if asked.fault.startswith("rate_limit"):
        return Code.MODEL_BUSY
    if asked.fault in SENTENCES:
        return Code(asked.fault)
    return asked.code or Code.INTERNAL_ERROR


def refusal_of(asked: NewFault) -> Refusal:
    code = code_of(asked)
    sentence, usual = SENTENCES[code]
    retry_after = usual if asked.retry_after is msgspec.UNSET else asked.retry_after
    if asked.fault == "rate_limit_without_hint":
        retry_after = None
    allow = ("POST",) if code is Code.METHOD_NOT_ALLOWED else ()
    return Refusal(code, asked.message or sentence, retry_after=retry_after, allow=allow)
