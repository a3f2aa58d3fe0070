"""Lark grammars of a regular language as regular expressions, which every engine that holds schemas can hold.

Most grammars of tools are of this kind: lines, words and repetitions, and no rule that holds itself. Source: the Lark
grammar reference. What is read between terminals without being written (`%ignore`) is not taken, nor are templates.
"""

import re
from collections.abc import Mapping

MAX_CHARACTERS = 100_000
"""Of a grammar, and of the expression that it becomes: rules that are used often are written out each time."""

_TOKEN = re.compile(
    r"""
    (?P<space>(?:\s|//[^\n]*)+)
    |(?P<rule>(?<![^\n])[?!]{0,2}(?P<name>_?[a-zA-Z]\w*)(?:\.-?\d+)?[ \t]*:)
    |(?P<directive>%\w+[^\n]*)
    |(?P<string>"(?:[^"\\\n]|\\.)*"(?P<fold>i?))
    |(?P<regex>/(?!/)(?:[^/\\\n]|\\.)+/(?P<flags>[imslux]*))
    |(?P<used>_?[a-zA-Z]\w*)
    |(?P<times>~[ \t]*(?P<least>\d{1,4})(?:[ \t]*\.\.[ \t]*(?P<most>\d{1,4}))?)
    |(?P<alias>->[ \t]*\w+)
    |(?P<sign>[|()\[\]*+?])
    """,
    re.VERBOSE,
)
_IMPORT = re.compile(r"%import\s+common\s*(?:\.\s*(\w+)\s*(?:->\s*(\w+))?|\(([\w\s,]+)\))\s*(?://.*)?")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|(.))")
_COMMON: Mapping[str, str] = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": "[0-9]+",
    "SIGNED_INT": r"[+\-]?[0-9]+",
    "DECIMAL": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)",
    "NUMBER": r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+\-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+\-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+\-]?[0-9]+)?",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\.)*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[a-zA-Z]",
    "WORD": "[a-zA-Z]+",
    "CNAME": "[_a-zA-Z][_a-zA-Z0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
}
"""The terminals of Lark's own library that describe text."""


class NotRegular(Exception):  # noqa: N818 - it says what a grammar is
    """Why a grammar has no regular expression here, as the end of a sentence: "it …"."""


def pattern_of(grammar: str) -> str:
    """An expression that matches the same texts as the rule `start`, without anchors. Raises NotRegular."""
    if len(grammar) > MAX_CHARACTERS:
        raise NotRegular(f"is longer than {MAX_CHARACTERS:,} characters")
    try:
        return _Grammar(grammar).pattern("start", ())
    except RecursionError:
        raise NotRegular("is nested too deep") from None


class _Grammar:
    """Rules by name as lists of tokens, and the expressions made of them so far."""

    def __init__(self, grammar: str) -> None:
        self._rules: dict[str, list[re.Match[str]]] = {}
        self._made: dict[str, str] = {}
        self._read(grammar)

    def pattern(self, name: str, within: tuple[str, ...]) -> str:
        if name in within:
            raise NotRegular(f"has a rule, {name}, that holds itself")
        if name not in self._made:
            if name not in self._rules:
                raise NotRegular(f"has no rule {name}")
            self._made[name] = _Expression(self, self._rules[name], (*within, name)).whole()
        return self._made[name]

    def _read(self, grammar: str) -> None:
        place, rule = 0, None
        while place < len(grammar):
            token = _TOKEN.match(grammar, place)
            if token is None:
                raise NotRegular(f"has something unknown at {grammar[place : place + 20]!r}")
            place = token.end()
            match token.lastgroup if token["rule"] is None else "rule":
                case "space":
                    pass
                case "rule":
                    rule = self._rules[token["name"]] = []
                case "directive":
                    self._import(token[0])
                case _ if rule is None:
                    raise NotRegular(f"begins with {token[0][:20]!r} instead of a rule")
                case _:
                    rule.append(token)

    def _import(self, directive: str) -> None:
        found = _IMPORT.fullmatch(directive.rstrip())
        if found is None:
            raise NotRegular(f"uses {directive[:40]!r}")
        names = [found[1]] if found[1] else [name.strip() for name in found[3].split(",")]
        for name in names:
            if name not in _COMMON:
                raise NotRegular(f"imports {name}, which is not known here")
            self._made[found[2] or name] = f"(?:{_COMMON[name]})"


class _Expression:
    """Reads the tokens of one rule by descent."""

    def __init__(self, grammar: _Grammar, tokens: list[re.Match[str]], within: tuple[str, ...]) -> None:
        self._grammar = grammar
        self._tokens = tokens
        self._within = within
        self._place = 0
        self._length = 0

    def whole(self) -> str:
        made = self._choice()
        if self._place < len(self._tokens):
            raise NotRegular(f"has {self._tokens[self._place][0]!r} where a rule should end")
        return made

    def _next(self) -> str:
        """The text of the next token; empty at the end."""
        return self._tokens[self._place][0] if self._place < len(self._tokens) else ""

    def _take(self) -> re.Match[str]:
        token = self._tokens[self._place]
        self._place += 1
        return token

    def _choice(self) -> str:
        branches = [self._sequence()]
        while self._next() == "|":
            self._take()
            branches.append(self._sequence())
        return f"(?:{'|'.join(branches)})"

    def _sequence(self) -> str:
        parts: list[str] = []
        while self._next() not in ("", "|", ")", "]"):
            if self._tokens[self._place]["alias"]:
                self._take()
                continue
            parts.append(self._atom() + self._repetition())
            self._length += len(parts[-1])
            if self._length > MAX_CHARACTERS:
                raise NotRegular("becomes too long when its rules are written out")
        return "".join(parts)

    def _atom(self) -> str:
        token = self._take()
        if token["used"]:
            return self._grammar.pattern(token[0], self._within)
        if token["string"]:
            return _literal(token)
        if token["regex"]:
            return _regex(token)
        if token[0] in ("(", "["):
            return self._group(token[0])
        raise NotRegular(f"has {token[0]!r} where something should stand before it")

    def _group(self, opening: str) -> str:
        made = self._choice()
        closing = {"(": ")", "[": "]"}[opening]
        if self._next() != closing:
            raise NotRegular(f"has a {opening} that is not closed")
        self._take()
        return made if opening == "(" else f"(?:{made}?)"

    def _repetition(self) -> str:
        token = self._tokens[self._place] if self._place < len(self._tokens) else None
        if token is None or not (token["times"] or token[0] in ("*", "+", "?")):
            return ""
        self._take()
        if token["times"]:
            most = token["most"] or token["least"]
            return f"{{{token['least']},{most}}}"
        return token[0]


def _literal(token: re.Match[str]) -> str:
    if token["fold"]:
        raise NotRegular("ignores the case of letters")
    text = _ESCAPE.sub(_unescaped, token["string"].removesuffix(token["fold"])[1:-1])
    return f"(?:{''.join(map(_escaped, text))})"


def _regex(token: re.Match[str]) -> str:
    if token["flags"]:
        raise NotRegular(f"has the flags {token['flags']} behind an expression")
    body = token[0][1:-1].replace("\\/", "/")
    return f"(?:{body})"


def _unescaped(found: re.Match[str]) -> str:
    code = found[1] or found[2]
    if code:
        return chr(int(code, 16))
    return {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}.get(found[3], found[3])


def _escaped(character: str) -> str:
    if character in r"\^$.|?*+()[]{}":
        return "\\" + character
    return {"\n": r"\n", "\r": r"\r", "\t": r"\t", "\f": r"\f"}.get(character, character)
