"""Grammar rules for arguments: JSON held to a schema, and values between marks of their own."""

import json
from collections.abc import Callable, Mapping, Sequence

from pocketserver.chat import JsonValue
from pocketserver.engines.llama import raw_text
from pocketserver.engines.llama.tool_syntax import Slot, TaggedForm, ValueStyle

_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""The spacing that most models were trained on; equal in every schema of a grammar, as llguidance wants it."""
EMPTY = '""'
_DEPTH = 8
"""How deeply bare-key objects are held to their schema; llguidance limits recursion itself."""
_WORDS = {"boolean": ("true", "false", "True", "False"), "null": ("null", "None")}
"""Templates in Python print its words, so models were trained on both."""
_PYTHON_WORDS = {"true": "True", "false": "False", "null": "None"}


class Rules:
    """The rules of one grammar by name, in the order of their making; `start` is written first."""

    def __init__(self, literal: Callable[[str], str], starts_special: Callable[[str], bool]) -> None:
        self.literal = literal
        self.starts_special = starts_special
        self._rules: dict[str, str] = {}

    def add(self, name: str, body: str) -> str:
        self._rules[name] = " ".join(body.split(" ")).strip() or EMPTY
        return name.split("[", maxsplit=1)[0]

    def json(self, name: str, schema: Mapping[str, JsonValue]) -> str:
        """A rule for JSON held to a schema."""
        written = json.dumps({**schema, "x-guidance": _SPACING}, ensure_ascii=False)
        self._rules[name] = f"%json {written}"
        return name

    def __str__(self) -> str:
        ordered = sorted(self._rules, key=lambda name: name != "start")
        return "\n".join(f"{name}: {self._rules[name]}" for name in ordered) + "\n"


def closed(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """The schema with no more properties than it names, where it does not say otherwise."""
    made = dict(schema)
    properties = made.get("properties")
    if isinstance(properties, Mapping):
        made["properties"] = {name: _closed_value(value) for name, value in properties.items()}
        if not {"additionalProperties", "patternProperties", "allOf"} & set(made):
            made["additionalProperties"] = False
    if isinstance(made.get("items"), dict):
        made["items"] = closed(made["items"])
    return made


def _closed_value(schema: JsonValue) -> JsonValue:
    return closed(schema) if isinstance(schema, dict) else schema


class TaggedValues:
    """Rules for the arguments of one tool whose values stand between marks."""

    def __init__(
        self,
        rules: Rules,
        form: TaggedForm,
        prepare: Callable[[dict[str, JsonValue]], Mapping[str, JsonValue]],
        prefix: str,
    ) -> None:
        """`prefix` keeps the rules' names apart from those of other tools."""
        self._rules = rules
        self._form = form
        self._prepare = prepare
        self._prefix = prefix
        self._shared: dict[str, JsonValue] = {}
        self._count = 0

    def arguments(self, schema: Mapping[str, JsonValue]) -> str:
        """All arguments in the order of the schema, the required ones always."""
        self._shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
        required = set(schema.get("required", ()))
        members = [
            (self._argument(str(key), value if isinstance(value, Mapping) else {}), key in required)
            for key, value in self._ordered(schema.get("properties", {}))
        ]
        return self._listed(members, self._rules.literal(self._form.separator))

    def _ordered(self, properties: Mapping[str, JsonValue]) -> Sequence[tuple[str, JsonValue]]:
        """In the order of the schema; templates of bare keys sort them, and their models write them so."""
        items = list(properties.items())
        return sorted(items) if self._form.style is ValueStyle.BARE_KEYS else items

    def _listed(self, members: Sequence[tuple[str, bool]], separator: str) -> str:
        """Members in order, optional ones left out or not, and a separator between those that are there."""
        if not separator:
            return " ".join(member if must else f"({member})?" for member, must in members)
        after = ""  # what may follow once something stands before
        choices: list[str] = []
        for member, must in reversed(members):
            rest = self._new(f"{member} {after}")
            choices = [rest] if must else [rest, *choices]
            after = f"{separator} {rest}" if must else f"({separator} {rest} | {after or EMPTY})"
            after = self._new(after) if after else ""
        if not members or not any(must for _, must in members):
            choices.append(EMPTY)
        return f"({' | '.join(choices)})"

    def _argument(self, key: str, schema: Mapping[str, JsonValue]) -> str:
        opening = " ".join("" if isinstance(part, Slot) else self._rules.literal(part) for part in self._form.key_open)
        options = [
            f"{self._rules.literal(self._form.closes_key(kind))} {self._valued(kind, part)}"
            for kind, part in self._by_type(schema)
        ]
        return self._new(f"{opening} {self._rules.literal(key)} ({' | '.join(options)})")

    def _by_type(self, schema: Mapping[str, JsonValue]) -> list[tuple[str, Mapping[str, JsonValue]]]:
        """The schema cut by the JSON types that it allows."""
        if "enum" in schema or "const" in schema:
            values = schema["enum"] if "enum" in schema else [schema["const"]]
            kinds = {_type_of(value): [] for value in values}  # type: ignore[var-annotated]
            for value in values:
                kinds[_type_of(value)].append(value)
            return [(kind, {"enum": members}) for kind, members in kinds.items()]
        declared = schema.get("type")
        if isinstance(declared, str):
            return [(_kind(declared), schema)]
        if isinstance(declared, list):
            return [(_kind(kind), {**schema, "type": kind}) for kind in declared]
        if any(word in schema for word in ("anyOf", "oneOf", "allOf", "$ref")):
            return [("object", schema)]
        return [("string", {"type": "string"})] if len(self._form.key_close) > 1 else [("any", schema)]

    def _valued(self, kind: str, schema: Mapping[str, JsonValue]) -> str:
        """A value and the mark that closes it."""
        close = self._rules.literal(self._form.value_close)
        match self._form.style:
            case ValueStyle.PYTHON:
                return f"{self._python(kind, schema)} {close}"
            case ValueStyle.BARE_KEYS:
                return f"{self._bare(kind, schema, 0)} {close}"
            case ValueStyle.RAW if kind == "string":
                return self._raw(schema)
            case _ if kind in _WORDS and "enum" not in schema:
                return f"({' | '.join(json.dumps(word) for word in _WORDS[kind])}) {close}"
            case _:
                return f"{self._json(schema)} {close}"

    def _raw(self, schema: Mapping[str, JsonValue]) -> str:
        close = self._form.value_close
        if "enum" in schema:
            words = " | ".join(self._rules.literal(value) or EMPTY for value in schema["enum"])
            return f"({words}) {self._rules.literal(close)}"
        body = raw_text.terminal(schema, close.strip().split(maxsplit=1)[0])
        return self._text_until(close) if body is None else self._held_until(body, close)

    def _text_until(self, close: str) -> str:
        """Any text, with the mark that closes it."""
        if self._rules.starts_special(close.lstrip()):
            return self._new(rf"/(.|\n)*/ {self._rules.literal(close.lstrip())}")
        mark = self._plain_length(close)
        name = self._name()
        self._rules.add(f"{name}[suffix={json.dumps(close[:mark], ensure_ascii=False)}]", r"/(.|\n)*/")
        return f"{name} {self._rules.literal(close[mark:])}"

    def _held_until(self, body: str, close: str) -> str:
        """The same with text that a terminal describes: one with its mark, since terminals take all that they can."""
        if self._rules.starts_special(close.lstrip()):
            name = self._rules.add(self._name().upper(), rf"({body}) /\n?/")
            return f"{name} {self._rules.literal(close.lstrip())}"
        mark = self._plain_length(close)
        name = self._rules.add(self._name().upper(), f"({body}) {json.dumps(close[:mark], ensure_ascii=False)}")
        return f"{name} {self._rules.literal(close[mark:])}"

    def _plain_length(self, close: str) -> int:
        return next((end for end in range(1, len(close) + 1) if self._is_whole(close[end:])), len(close))

    def _is_whole(self, rest: str) -> bool:
        """True where plain text ends: at the end of the mark, or before a special token in it."""
        return not rest or self._rules.starts_special(rest)

    def _python(self, kind: str, schema: Mapping[str, JsonValue]) -> str:
        if "enum" in schema:
            return f"({' | '.join(json.dumps(_python_text(value), ensure_ascii=False) for value in schema['enum'])})"
        if kind == "string":
            plain = self._new(r""""'" /[^'\\]*/ "'" """)
            return f"({plain} | {self._json(schema)})"
        if kind in ("boolean", "null"):
            words = ("true", "false") if kind == "boolean" else ("null",)
            return f"({' | '.join(json.dumps(_PYTHON_WORDS[word]) for word in words)})"
        return self._json(schema)

    def _bare(self, kind: str, schema: Mapping[str, JsonValue], depth: int) -> str:
        quote = self._rules.literal(self._form.string_quote)
        if "enum" in schema and kind == "string":
            words = " | ".join(self._rules.literal(value) or EMPTY for value in schema["enum"])
            return f"{quote} ({words}) {quote}"
        if kind == "string":
            return f"{quote} {self._text_until(self._form.string_quote)}"
        if kind == "object" and depth < _DEPTH and schema.get("properties"):
            return self._bare_object(schema, depth)
        if kind == "array" and depth < _DEPTH and isinstance(schema.get("items"), Mapping):
            item = self._new(" | ".join(self._bare(*option, depth + 1) for option in self._by_type(schema["items"])))
            return self._new(f'"[" ({item} ("," {item})*)? "]"')
        if kind in ("object", "array", "any"):
            return self._bare_anything()[kind]
        return self._json(schema)

    def _bare_anything(self) -> Mapping[str, str]:
        """Rules for values that no schema describes."""
        names = {kind: f"{self._prefix}free_{kind}" for kind in ("any", "object", "array", "member", "text")}
        quote = self._rules.literal(self._form.string_quote)
        add = self._rules.add
        add(names["text"], f"{quote} {self._text_until(self._form.string_quote)}")
        scalar = self._rules.json(f"{self._prefix}free_scalar", {"type": ["number", "boolean", "null"]})
        add(names["any"], f"{names['text']} | {scalar} | {names['object']} | {names['array']}")
        add(names["member"], f'/[A-Za-z_][A-Za-z0-9_]*/ ":" {names["any"]}')
        add(names["object"], f'"{{" ({names["member"]} ("," {names["member"]})*)? "}}"')
        add(names["array"], f'"[" ({names["any"]} ("," {names["any"]})*)? "]"')
        return names

    def _bare_object(self, schema: Mapping[str, JsonValue], depth: int) -> str:
        required = set(schema.get("required", ()))
        members = []
        for key, value in self._ordered(schema["properties"]):
            options = (self._bare(*option, depth + 1) for option in self._by_type(value))
            members.append((self._new(f"{self._rules.literal(key + ':')} ({' | '.join(options)})"), key in required))
        return self._new(f'"{{" {self._listed(members, self._rules.literal(","))} "}}"')

    def _json(self, schema: Mapping[str, JsonValue]) -> str:
        return self._rules.json(self._name(), self._prepare({**self._shared, **schema}))

    def _new(self, body: str) -> str:
        return self._rules.add(self._name(), body)

    def _name(self) -> str:
        self._count += 1
        return f"{self._prefix}{self._count}"


def _kind(json_type: str) -> str:
    return "number" if json_type == "integer" else json_type


def _type_of(value: JsonValue) -> str:
    kinds = ((bool, "boolean"), (str, "string"), (int | float, "number"), (Mapping, "object"), (list, "array"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "null")


def _python_text(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return f"'{value}'" if isinstance(value, str) else _PYTHON_WORDS.get(text, text)
