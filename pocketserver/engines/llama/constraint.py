"""Holds an answer to a JSON Schema or grammar, token by token, and names the tokens that it forces."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

import llguidance
import llguidance.llamacpp
import numpy as np
import numpy.typing as npt

from pocketserver.chat import AnyJsonObject, Constraint, Grammar, JsonSchema, JsonValue
from pocketserver.engines.llama.frames import SCHEMA_PARAM
from pocketserver.engines.llama.model import Vocabulary
from pocketserver.engines.llama.schema_check import Path, SchemaFault, children, prepared, shown, subschemas
from pocketserver.errors import Code, Refusal

MAX_GRAMMAR_BYTES = 256 * 1024

_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""One fixed spacing forces most tokens: 36 instead of 13 of a small object; and no endless blanks."""
_LIMITS = llguidance.LLParserLimits(max_items_in_row=20_000, verbose_errors=False)
"""500 optional properties need more than the 2,000 items that are the library's limit."""
_SEARCH_SECONDS = 1.0
_DAY = (
    "(?:[0-9]{4}-(?:(?:0[13-9]|1[0-2])-[0-9]{2}|02-(?:[01][0-9]|2[0-8]))"
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
_TIME = "[0-9]{2}:[0-9]{2}:[0-5][0-9]"
_REAL_TIMES: Mapping[str, str] = {"date": f"^{_DAY}", "time": f"^{_TIME}", "date-time": f"^{_DAY}[Tt]{_TIME}"}
"""How values of these formats begin: 29 February in leap years alone, and no leap second, which few readers take."""


class Compiler:
    """Makes constraints for one vocabulary. The first use takes some tenths of a second, for the vocabulary's trie."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokenizer: llguidance.LLTokenizer | None = None

    def compile(self, constraint: Constraint, *, param: str = SCHEMA_PARAM) -> "TokenConstraint":
        """Compile and try the first mask. Raises Refusal(INVALID_PARAMETER) at `param`, naming keyword and place."""
        return self._compiled(constraint, param)[0]

    def compile_behind(self, lark: str, constraint: Constraint, *, param: str = SCHEMA_PARAM) -> "TokenConstraint":
        """Like `compile`, as the part named `@answer` of a grammar of ours."""
        _, grammar = self._compiled(constraint, param)
        return self.compile_grammar(lark, grammar)

    def compile_grammar(self, lark: str, answer: str | None = None) -> "TokenConstraint":
        """A grammar that this program wrote. `answer` is a compiled grammar's text. Raises GrammarFault."""
        parts: list[JsonValue] = [{"lark_grammar": lark}]
        if answer is not None:
            parts.append({**json.loads(answer)["grammars"][0], "name": "answer"})
        matcher = self._matcher(json.dumps({"grammars": parts}))
        if problem := _problem(matcher):
            raise GrammarFault(problem)
        return TokenConstraint(matcher)

    def _compiled(self, constraint: Constraint, param: str) -> "tuple[TokenConstraint, str]":
        """The constraint, and its grammar as text."""
        match constraint:
            case AnyJsonObject():
                return self._from_schema({"type": "object"}, param)
            case JsonSchema(schema=schema):
                return self._from_schema(schema, param)
            case Grammar(syntax=syntax, definition=definition):
                return self._from_grammar(syntax, definition, param)
            case _:
                assert_never(constraint)

    def _from_schema(self, schema: Mapping[str, JsonValue] | bool, param: str) -> "tuple[TokenConstraint, str]":
        try:
            ready = prepared(schema)
        except SchemaFault as fault:
            raise _invalid(str(fault), param) from fault
        grammar = schema_grammar(ready)
        matcher = self._matcher(grammar)
        if problem := _problem(matcher):
            place = (*self._culprit(ready), *_keyword(problem))
            raise _invalid(f"The schema cannot be honoured at {shown(place)}: {problem}.", param)
        return TokenConstraint(matcher), grammar

    def _from_grammar(self, syntax: str, definition: str, param: str) -> "tuple[TokenConstraint, str]":
        makers: Mapping[str, Callable[[str], str]] = {
            "lark": lambda text: json.dumps({"grammars": [{"lark_grammar": text}]}),
            "regex": llguidance.LLMatcher.grammar_from_regex,
        }
        if syntax not in makers:
            raise _invalid(f"Grammars are written as {' or '.join(makers)}, not as {syntax[:40]}.", param)
        if len(definition.encode("utf-8", errors="replace")) > MAX_GRAMMAR_BYTES:
            raise _invalid(f"The grammar is larger than {MAX_GRAMMAR_BYTES:,} bytes.", param)
        grammar = makers[syntax](definition)
        matcher = self._matcher(grammar)
        if problem := _problem(matcher):
            raise _invalid(f"The grammar cannot be used: {problem}.", param)
        return TokenConstraint(matcher), grammar

    def _matcher(self, grammar: str) -> llguidance.LLMatcher:
        if self._tokenizer is None:
            ends = sorted(self._vocabulary.end_tokens) or None
            self._tokenizer = llguidance.llamacpp.lltokenizer_from_vocab(self._vocabulary.pointer, eos_token=ends)
        return llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=_LIMITS)

    def _culprit(self, root: dict[str, JsonValue]) -> Path:
        """The path of the innermost schema that fails by itself; the search gives up after a second."""
        shared: dict[str, JsonValue] = {name: root[name] for name in ("$defs", "definitions") if name in root}
        path: Path = ()
        node, deadline = root, time.monotonic() + _SEARCH_SECONDS
        while found := next(self._failing(path, node, shared, deadline), None):
            path, node = found
        return path

    def _failing(  # type: ignore[no-untyped-def]
        self, path: Path, node: dict[str, JsonValue], shared: dict[str, JsonValue], deadline: float
    ):
        for child_path, child in children(path, node):
            if time.monotonic() > deadline:
                return
            if isinstance(child, dict) and _problem(self._matcher(schema_grammar({**shared, **child}))):
                yield child_path, child


class GrammarFault(Exception):  # noqa: N818 - it says what is wrong with a grammar
    """What llguidance says of a grammar that it does not take."""


class TokenConstraint:
    """The state of one constrained answer. A failure inside is a Refusal, never a silent end."""

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher

    def anew(self) -> "TokenConstraint":
        """The same constraint for another answer, from where this one stands. Takes microseconds."""
        return TokenConstraint(self._matcher.deep_copy())

    @property
    def finished(self) -> bool:
        """Whether the value is complete and nothing may follow."""
        return bool(self._matcher.is_stopped())

    def mask(self, logits: npt.NDArray[np.float32]) -> None:
        """Set the logits of tokens that may not come to -inf, in place."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        forbidden = np.unpackbits(np.invert(bits), bitorder="little")[: len(logits)].view(np.bool_)
        np.copyto(logits[: len(forbidden)], -np.inf, where=forbidden)
        logits[len(forbidden) :] = -np.inf

    def accept(self, token: int) -> list[int]:
        """A token was chosen; the tokens that must follow it are accepted too and returned."""
        self._matcher.consume_token(token)
        self._check()
        return self.forced()

    def accept_all(self, tokens: Sequence[int]) -> list[int]:
        """Tokens were chosen for the model. Returns what must follow, accepted too."""
        self._matcher.consume_tokens(list(tokens))
        self._check()
        return self.forced()

    def forced(self) -> list[int]:
        """The tokens that must come now; they count as accepted."""
        if self.finished:
            return []
        tokens = list(self._matcher.compute_ff_tokens())
        if tokens:
            self._matcher.consume_tokens(tokens)
        self._check()
        return tokens

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = _first_line(self._matcher.get_error())
            raise Refusal(
                Code.GENERATION_FAILED, f"The answer's format could not be kept: {reason}. Use a simpler schema."
            )


def schema_grammar(schema: dict[str, JsonValue]) -> str:
    """llguidance's grammar for a prepared schema."""
    options = {key: value for key, value in schema.items() if key != "x-guidance"}  # spacing is ours to set
    options = json.loads(json.dumps(options))
    for _, node in subschemas(options):
        _keep_to_real_times(node)
    text = json.dumps(options, ensure_ascii=False)
    grammar: str = llguidance.LLMatcher.grammar_from_json_schema(text, overrides=_SPACING)
    return grammar


def _keep_to_real_times(node: dict[str, JsonValue]) -> None:
    """The library knows a 29 February and a 60th second always; a pattern beside the format takes them away."""
    pattern = _REAL_TIMES.get(str(node.get("format")))
    if pattern is not None and "pattern" not in node:
        node["pattern"] = pattern


def _problem(matcher: llguidance.LLMatcher) -> str | None:
    """Why a new matcher cannot be used, after its first mask; None when it can."""
    if not matcher.is_error():
        matcher.compute_bitmask()
    return _first_line(matcher.get_error()) if matcher.is_error() else None


_KEYWORDS = {
    "regex parse error": "pattern",
    "lookarounds": "pattern",
    "Failed to generate regex": "minimum",
    "Unknown format": "format",
    "oneOf": "oneOf",
    "min/maxProperties": "minProperties",
    "patternProperty": "patternProperties",
    "Invalid type": "type",
    "Pointer": "$ref",
    "Resource": "$ref",
}
"""How the library's messages begin, and the keyword that they speak of."""


def _keyword(problem: str) -> tuple[str, ...]:
    return tuple(keyword for start, keyword in _KEYWORDS.items() if problem.startswith(start))


def _first_line(error: str) -> str:
    lines = [line.strip() for line in error.splitlines() if line.strip()] or ["unknown reason"]
    return lines[0].removeprefix("failed to compile JSON schema: ").rstrip(".:")[:300]


def _invalid(message: str, param: str) -> Refusal:
    return Refusal(Code.INVALID_PARAMETER, message, param=param)
