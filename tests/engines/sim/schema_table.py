"""Schemas that must be answered, and schemas that must be refused with the keyword named.

Each is a case of its own; the tests of examples walk these tables, alone and beside llguidance.
"""

from pocketserver.chat import JsonValue


def one_of(*options: JsonValue, **beside: JsonValue) -> JsonValue:
    return {"oneOf": list(options), **beside}


def an_object(*required: str, **properties: JsonValue) -> dict[str, JsonValue]:
    return {"type": "object", "properties": properties, "required": list(required)}


def a_text(pattern: str, **beside: JsonValue) -> JsonValue:
    return {"type": "string", "pattern": pattern, **beside}


def defining(schema: JsonValue, **definitions: JsonValue) -> JsonValue:
    return {**schema, "$defs": definitions}


TREE = defining(
    {"$ref": "#/$defs/node"},
    node=an_object(
        "name", "children", name={"type": "string"}, children={"type": "array", "items": {"$ref": "#/$defs/node"}}
    ),
)
CHAIN = defining(
    {"$ref": "#/$defs/link"},
    link=an_object(
        "value", "next", value={"type": "integer"}, next={"anyOf": [{"$ref": "#/$defs/link"}, {"type": "null"}]}
    ),
)
EXPRESSION = defining(
    {"$ref": "#/$defs/sum"},
    sum=an_object("terms", terms={"type": "array", "items": {"$ref": "#/$defs/term"}, "minItems": 2}),
    term={"anyOf": [{"$ref": "#/$defs/sum"}, {"type": "number"}, {"$ref": "#/$defs/product"}]},
    product=an_object("left", "right", left={"$ref": "#/$defs/term"}, right={"$ref": "#/$defs/term"}),
)
CARD = an_object("kind", "digits", kind={"const": "card"}, digits={"type": "string", "pattern": "^[0-9]{16}$"})
CASH = an_object("kind", kind={"const": "cash"}, amount={"type": "number", "minimum": 0})

FOLLOWED: list[JsonValue] = [
    # any value, annotations, unknown words
    True, {}, {"title": "T", "description": "D", "default": 1, "examples": [1], "deprecated": True, "$comment": "c"},
    {"unknownThing": 3}, {"contentEncoding": "base64"}, {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "null"},
    # types
    *[{"type": kind} for kind in ("object", "array", "string", "integer", "number", "boolean", "null")],
    {"type": ["string", "null"]}, {"type": ["integer", "number"]}, {"type": ["array", "object"]}, {"type": ["integer", "string", "boolean"]},
    {"type": "string", "nullable": True}, {"type": "string", "enum": ["a"], "nullable": True},
    # const and enum, alone and with others
    {"const": 1}, {"const": None}, {"const": "x"}, {"const": [1, "a", {"b": None}]}, {"const": {"k": {"l": []}}},
    {"enum": ["a", "b"]}, {"enum": [1, 1]}, {"enum": [{"a": 1}, [1, 2], None]}, {"type": "string", "enum": [1, "a"]},
    {"type": ["string", "null"], "enum": ["a", None]}, {"type": "string", "enum": ["abc", "d"], "pattern": "^a"},
    {"type": "string", "enum": ["abc", "d"], "minLength": 2}, {"type": "integer", "enum": [1, 5], "minimum": 3},
    {"enum": [1.0, 2], "const": 1}, {"type": "integer", "const": 1.0}, {"type": "boolean", "enum": [False]},
    {"enum": ["a", "b"], "allOf": [{"enum": ["b", "c"]}]}, {"enum": [f"value {index}" for index in range(20_000)]},
    {"enum": [[1], [1, 2]], "minItems": 2}, {"enum": [{"a": 1}, {"b": 1}], "required": ["b"]},
    # strings: length, pattern, both
    {"type": "string", "minLength": 3}, {"type": "string", "maxLength": 2}, {"type": "string", "maxLength": 0},
    {"type": "string", "minLength": 40, "maxLength": 40}, {"type": "string", "maxLength": 10_000_000},
    {"minLength": 1, "type": "integer"}, {"minLength": -1, "type": "integer"}, {"pattern": "[", "type": "integer"}, {"minLength": 2},
    *[a_text(pattern) for pattern in (
        "", "abc", "^abc$", "^a", "b$", "^^a$$", "(^a|b$)", "a|b|c", "a||b", "(?:a|b|)", "()", "^(a|(b|(c|d)))$",
        "^a*$", "^a+$", "^a?$", "^a{3}$", "^a{2,}$", "^a{2,4}$", "^a+?b*?$", "^x{0}$", "^x{2}{3}$", "^a++$",
        "^[abc]+$", "^[a-z0-9_-]+$", "^[^a-z]+$", "^[-a]$", "^[a-]$", "^[]a]+$", r"^[\]a]$", r"^[a\-z]$", r"^[\d-x]+$", "^[.]$",
        r"^\d{3}-\d{4}$", r"^\w+\s\w+$", r"^\D\W\S$", r"^[^\W\d]+$", r"^[^\s]+$", r"^.$", r"^\.\*\^\$$", r"^\/\-\_\@$",
        r"^\n\r\t$", r"^\x41\u00e9$", r"(?i)ABC", r"^(?i:a)b$", r"(?s)^.$", r"^(?P<year>\d{4})-(?P<month>0[1-9]|1[0-2])$",
        r"^[\w.+-]+@[\w-]+\.[\w.]+$", r"^(\+\d{1,2}\s)?\(?\d{3}\)?[\s.-]\d{3}[\s.-]\d{4}$", r"^#([0-9a-fA-F]{6}|[0-9a-fA-F]{3})$",
        r"^[A-Z]{2}\d{2}[A-Z0-9]{1,30}$", r"^(?:[01]\d|2[0-3]):[0-5]\d$", r"^v?\d+\.\d+\.\d+(-[a-z0-9.]+)?$", r"^\s*$",
        "^(a{200}){3}$", "^(((a{10}){5}){2}){2}$", "(a+)+$", "(a|aa)+b", ".*.*x.*y", "^日本語$", "^[а-я]+$", "a}", "]",
    )],
    a_text("^[a-z]+$", minLength=12), a_text("^[a-z]+$", maxLength=3), a_text("[0-9]", minLength=8, maxLength=8), a_text("x", minLength=20),
    {"allOf": [a_text("^a"), a_text("z$"), {"minLength": 5}]}, {"allOf": [a_text("[0-9]"), a_text("[A-Z]"), a_text("[!?]"), {"minLength": 8}]},
    # formats
    *[{"type": "string", "format": name} for name in (
        "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown",
    )],
    {"format": "date"}, {"type": "integer", "format": "foo"}, {"type": "integer", "format": "int32"}, {"type": "string", "format": "password"},
    a_text("^2024-", format="date"), a_text("-02-29$", format="date"), a_text("^[a-z]+@corp[.]example$", format="email"),
    {"type": "string", "format": "uri", "maxLength": 12}, {"type": "string", "format": "hostname", "minLength": 30},
    a_text("^10[.]", format="ipv4"), {"type": "string", "format": "date", "enum": ["2024-02-29", "no date"]}, a_text("^0", format="uuid"),
    # numbers
    {"type": "integer", "minimum": 3}, {"type": "integer", "maximum": -3}, {"type": "integer", "minimum": 5, "maximum": 5},
    {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 3}, {"type": "integer", "minimum": 0.5, "maximum": 1.5},
    {"type": "integer", "multipleOf": 7, "minimum": 8}, {"type": "integer", "multipleOf": 0.5, "minimum": 1}, {"type": "integer", "multipleOf": 1.5},
    {"type": "integer", "maximum": 9_223_372_036_854_775_807, "minimum": 0}, {"type": "integer", "minimum": -(10**15)},
    {"type": "number", "minimum": 1, "maximum": 1}, {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "number", "minimum": 0.1, "maximum": 0.2, "multipleOf": 0.05}, {"type": "number", "multipleOf": 0.1},
    {"type": "number", "multipleOf": 0.01, "minimum": 10.001}, {"type": "number", "multipleOf": 3, "minimum": 10}, {"type": "number", "multipleOf": 0.0001},
    {"type": "number", "minimum": 0.33, "maximum": 0.34}, {"type": "number", "exclusiveMaximum": -2.5}, {"type": "number", "minimum": 10**15},
    {"allOf": [{"type": "number", "multipleOf": 2}, {"type": "integer", "multipleOf": 3}]}, {"minimum": 4}, {"type": ["integer", "null"], "minimum": 4},
    {"allOf": [{"type": "integer", "minimum": 2}, {"minimum": 5, "maximum": 9}, {"exclusiveMaximum": 7}]},
    # arrays
    {"type": "array", "items": {"type": "integer"}}, {"type": "array", "items": {"type": "integer"}, "minItems": 4},
    {"type": "array", "maxItems": 0}, {"maxItems": 0}, {"type": "array", "items": False}, {"type": "array", "items": {"enum": ["a"]}, "maxItems": 1},
    {"type": "array", "prefixItems": [{"type": "null"}, {"type": "string"}]}, {"type": "array", "prefixItems": []},
    {"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "integer"}, "minItems": 3},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "minItems": 2},
    {"type": "array", "prefixItems": [{"type": "null"}, False]}, {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}, "minItems": 1}, "minItems": 2},
    {"type": "array", "items": True, "minItems": 2}, {"type": "array", "minItems": 200, "items": {"type": "integer"}}, {"uniqueItems": False}, {"items": {"type": "null"}},
    {"allOf": [{"type": "array", "items": {"minimum": 3}}, {"items": {"type": "integer", "maximum": 5}, "minItems": 2}]},
    # objects
    {"type": "object", "properties": {}}, an_object(a={"type": "string"}), an_object("a", a={"type": "string"}, b={"type": "integer"}),
    an_object("a", "z", a={}), {"properties": {"a": {"type": "null"}}}, {"required": ["a"]}, {"type": "object", "required": ["a", "a"]},
    {**an_object("a", a={"type": "integer"}, b={"type": "integer"}), "additionalProperties": False},
    {"type": "object", "additionalProperties": {"type": "integer"}, "required": ["z"]}, {"type": "object", "additionalProperties": {"type": "integer"}},
    {"type": "object", "additionalProperties": False}, {"type": "object", "properties": {"a": False}}, an_object("a", a=an_object("b", b=an_object("c", c={"const": 1}))),
    {"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "required": ["xa"]}, {"patternProperties": {"^a": {}, "^b": {}}},
    {"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
    {"properties": {"xa": {"maximum": 3}}, "patternProperties": {"^x": {"type": "integer"}}, "required": ["xa"]},
    {"properties": {"xa": {"type": "string"}}, "patternProperties": {"^x": {"type": "integer"}}, "type": "object"},
    {"patternProperties": {"^a": {}, "a$": {}}, "type": "string"},
    {"type": "object", "minProperties": 1}, {"type": "object", "minProperties": 3, "additionalProperties": {"type": "boolean"}}, {"type": "object", "maxProperties": 0},
    {**an_object("a", a={}), "maxProperties": 1, "additionalProperties": False}, {**an_object("a", a={}), "minProperties": 3, "maxProperties": 3},
    {"type": "object", "minProperties": 2, "patternProperties": {"^x[0-9]$": {"type": "null"}}, "additionalProperties": False},
    {"type": "object", "minProperties": 2, "required": ["q"]}, {"minProperties": 1, "properties": {"a": False}}, {"minProperties": 1, "type": "string", "properties": {"a": {}}},
    {"type": "object", "minProperties": 200}, an_object("", " ", **{"": {"type": "null"}, " ": {"type": "null"}}), an_object('a"b', **{'a"b': {"const": "\\"}}),
    {"type": "object", "properties": {f"p{index}": {"type": "integer"} for index in range(400)}, "required": [f"p{index}" for index in range(0, 400, 7)]},
    # allOf, anyOf, oneOf
    one_of({"const": 1}, {"const": 2}), one_of({"const": {"k": 1}}, {"const": {"k": 2}}),
    {"allOf": []}, {"allOf": [{"type": "string"}, {"minLength": 2}]}, {"allOf": [{"allOf": [{"allOf": [{"type": "null"}]}]}]},
    {"allOf": [an_object("a", a={"type": "string"}), an_object("a", "b", a={"maxLength": 3}, b={"type": "null"})]},
    {"allOf": [an_object("b", b={"type": "null"}), an_object("a", a={"type": "null"}), an_object("c", c={"type": "null"})]},
    {**an_object("a", a={}, b={}), "minProperties": 1}, defining({"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "type": "object"}, a=an_object("x", x={"const": 1})),
    {"allOf": [{"properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}}, {"required": ["b"], "type": "object"}]},
    {"anyOf": [{"type": "string"}, {"type": "integer"}]}, {"anyOf": [False, {"type": "null"}]}, {"anyOf": [{"type": "string"}, {}]},
    {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": {"type": "null"}, "b": {"type": "null"}}},
    {"anyOf": [{"type": "string"}, {"type": "integer"}], "allOf": [{"anyOf": [{"type": "null"}, {"type": "integer"}]}]},
    {"type": "integer", "anyOf": [{"minimum": 10}, {"maximum": -10}]}, {"anyOf": [{"anyOf": [{"const": 1}, {"const": 2}]}, {"const": 3}]},
    {"allOf": [{"anyOf": [{"const": number}, {"const": number + 1}]} for number in (1, 1, 2)]},
    one_of({"type": "integer"}, {"type": "string"}), one_of({"type": "null"}), one_of({"type": "integer"}, False), one_of(CARD, CASH),
    one_of({"const": "a"}, {"const": "b"}), one_of({"enum": ["a"]}, {"enum": ["b", "c"]}), one_of({"const": True}, {"const": False}),
    one_of({"const": "a"}, {"type": "integer"}), one_of(an_object(k={"const": "a"}), an_object("k", k={"const": "b"})),
    one_of({**an_object("a", a={}), "additionalProperties": False}, {**an_object("b", b={}), "additionalProperties": False}),
    one_of({"anyOf": [{"type": "null"}, {"type": "string"}]}, {"type": "boolean"}), one_of({"const": {"k": "a"}}, {"const": {"k": "b"}}),
    one_of(an_object("k", k={"type": "string"}), an_object("k", k={"type": "integer"})),
    one_of(an_object("k", k=an_object("z", z={"const": "a"})), an_object("k", k=an_object("z", z={"const": "b"}))),
    {"type": "array", "items": one_of(CARD, CASH), "minItems": 3}, {"anyOf": [{"type": "string"}], "oneOf": [{"type": "string"}]},
    defining(one_of({"$ref": "#/$defs/card"}, {"$ref": "#/$defs/cash"}, type="object"), card=CARD, cash=CASH),
    # references
    defining({"$ref": "#/$defs/a"}, a={"type": "null"}), {"$ref": "#/definitions/a", "definitions": {"a": {"type": "integer"}}},
    defining({"$ref": "#/$defs/a", "maxLength": 2}, a={"type": "string"}), defining({"$ref": "#/$defs/a"}, a={"$ref": "#/$defs/b"}, b={"const": 5}),
    {"type": "object", "properties": {"a": {"$ref": "#/properties/b"}, "b": {"type": "null"}}}, {"$ref": "#/x", "x": {"type": "null"}},
    {"$ref": "#a", "$defs": {"q": {"$anchor": "a", "type": "null"}}}, {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"const": 1}}},
    {"$ref": "#/anyOf/1", "anyOf": [{"type": "null"}, {"type": "boolean"}]} | {"anyOf": [{"type": "boolean"}, {"type": "boolean"}]},
    TREE, CHAIN, EXPRESSION, {"anyOf": [{"type": "null"}, {"$ref": "#"}]}, an_object(a={"$ref": "#"}), {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
    defining({"$ref": "#/$defs/l0"}, **{f"l{index}": an_object("a", a={"$ref": f"#/$defs/l{index + 1}"}) for index in range(40)}, l40={"type": "null"}),
    defining(an_object("a", "b", a={"$ref": "#/$defs/a"}, b={"$ref": "#/$defs/a"}), a=an_object("x", x={"type": "integer", "minimum": 4})),
    # what clients send
    {**an_object("city", "unit", city={"type": "string"}, unit={"type": "string", "enum": ["celsius", "fahrenheit"]}), "additionalProperties": False},
    {**an_object("steps", "answer", steps={"type": "array", "items": an_object("text", text={"type": "string"})}, answer={"type": "number"}), "title": "Reasoning"},
    an_object("tags", tags={"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,8}$"}, "minItems": 2, "maxItems": 4}, note={"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}),
]  # fmt: skip

REFUSED: list[tuple[JsonValue, str]] = [
    # longer than any answer
    ({"type": "string", "minLength": 10_000_000}, "minLength"),
    # unsupported keywords
    ({"not": {}}, "not"), ({"if": {}, "then": {}}, "if"), ({"then": {}}, "then"), ({"else": {}}, "else"), ({"type": "array", "contains": {"type": "null"}}, "contains"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"), ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ({"dependentSchemas": {"a": {}}}, "dependentSchemas"), ({"dependencies": {"a": ["b"]}}, "dependencies"), ({"propertyNames": {"maxLength": 3}}, "propertyNames"),
    ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"), ({"unevaluatedItems": False}, "unevaluatedItems"), ({"minContains": 1}, "minContains"),
    ({"$dynamicRef": "#a"}, "$dynamicRef"), (an_object(a={"not": {}}), "#/properties/a/not"), ({"type": "array", "items": {"if": {}}}, "#/items/if"),
    (defining({"$ref": "#/$defs/x"}, x={"not": {}}), "#/$defs/x/not"), ({"enum": [1], "not": {}}, "not"), ({"anyOf": [{"type": "null"}, {"not": {}}]}, "#/anyOf/1/not"),
    # choices that may overlap
    (one_of({"type": "integer"}, {"type": "number"}), "oneOf"), (one_of({}, {"type": "null"}), "oneOf"),
    (one_of(a_text("^a"), a_text("^b")), "oneOf"), (one_of({"type": "string", "maxLength": 2}, {"type": "string", "minLength": 3}), "oneOf"),
    (one_of({"type": "integer", "maximum": 1}, {"type": "integer", "minimum": 2}), "oneOf"), (one_of({"type": "null"}, {"type": "null"}), "oneOf"),
    (one_of(an_object(k={"const": "a"}), an_object(k={"const": "b"})), "oneOf"), (one_of(an_object("a", a={}), an_object("b", b={})), "oneOf"),
    (one_of({"required": ["a"]}, {"required": ["b"]}, type="object", properties={"a": {}, "b": {}}), "oneOf"),
    (one_of({"type": "array", "items": {"type": "string"}, "minItems": 1}, {"type": "array", "items": {"type": "integer"}, "minItems": 1}), "oneOf"),
    # numbers of properties, patterns of names
    ({**an_object(a={}), "minProperties": 1}, "minProperties"), ({**an_object(a={}, b={}), "maxProperties": 1}, "maxProperties"), ({**an_object("a", a={}, b={}), "minProperties": 2}, "minProperties"),
    ({"minProperties": 1, "properties": {"a": {}}}, "minProperties"), ({"patternProperties": {"^a": {}, "a$": {}}}, "patternProperties"), ({"patternProperties": {"^x-": {}, ".*": {}}}, "patternProperties"),
    ({"patternProperties": {"[": {}}}, "patternProperties"),
    # formats
    *[({"type": "string", "format": name}, "format") for name in ("idn-email", "idn-hostname", "iri", "json-pointer", "regex", "uri-template", "uri-reference", "byte", "phone")],
    ({"format": "foo"}, "format"), ({"const": 1, "format": "foo"}, "format"), ({"type": "string", "format": 1}, "format"),
    # patterns
    *[(a_text(pattern), "pattern") for pattern in (
        "(?=a)b", "(?!a)", "(?<=a)b", "(?<!a)b", "(?>a)", r"\bfoo", r"\B", r"^(a)\1$", r"\k<n>", "[", "(", ")", "*", "a{", "{", "a{b}", "a{3,2}", "a{,3}",
        r"\cA", r"\Z", r"\h", r"\01", "[^]", "[]", "[b-a]", r"[a-\d]", r"[\b]", r"\é", "^*", "(?#c)a", r"\<a", "a^b", "a$b", "$a", "[a&&b]", r"\u{110000}", r"\p{Nope}",
    )],
    ({"pattern": "["}, "pattern"), ({"type": "string", "pattern": 1}, "pattern"),
    # references
    ({"$ref": "#/nope"}, "$ref"), ({"$ref": "http://example.com/schema"}, "$ref"), ({"$ref": 3}, "$ref"), ({"$ref": "#"}, "$ref"), (an_object(a={"$ref": "other.json"}), "#/properties/a/$ref"),
    # words of the wrong form
    ({"type": "foo"}, "type"), ({"type": []}, "type"), ({"type": 3}, "type"), ({"type": ["string", "foo"]}, "type"), ({"properties": None}, "properties"), ({"properties": []}, "properties"),
    ({"required": "a"}, "required"), ({"required": [1]}, "required"), ({"items": 3}, "#/items"), ({"additionalProperties": 3}, "#/additionalProperties"), ({"prefixItems": {}}, "prefixItems"),
    ({"enum": "a"}, "enum"), ({"anyOf": 3}, "anyOf"), ({"allOf": 3}, "allOf"), ({"patternProperties": []}, "patternProperties"), ({"type": "string", "minLength": -1}, "minLength"),
    ({"type": "string", "minLength": 1.5}, "minLength"), ({"type": "array", "minItems": "1"}, "minItems"), ({"minProperties": -1}, "minProperties"), ({"type": "number", "minimum": "1"}, "minimum"),
    ({"type": "integer", "multipleOf": 0}, "multipleOf"), ({"type": "integer", "multipleOf": 999_983}, "multipleOf"), ({"type": "integer", "minimum": 1e300}, "minimum"),
    ({"type": "number", "maximum": 1e20}, "maximum"), ({"type": "integer", "minimum": 2**63}, "minimum"),
    # contradictions
    (False, "false"), ({"enum": []}, "enum"), ({"anyOf": []}, "anyOf"), ({"oneOf": []}, "anyOf"), ({"anyOf": [False]}, "anyOf"), ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "type"),
    ({"type": "string", "enum": [1]}, "enum"), ({"type": "string", "const": 1}, "const"), ({"type": "integer", "const": 1.5}, "const"), ({"enum": [1, "a"], "const": 2}, "const"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, "maximum"), ({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}, "exclusiveMinimum"), ({"type": "integer", "minimum": 0.5, "maximum": 0.7}, "minimum"),
    ({"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 6}, "multipleOf"), ({"type": "number", "exclusiveMinimum": 1, "maximum": 1}, "maximum"),
    ({"type": "number", "minimum": 0.1, "maximum": 0.2, "multipleOf": 0.25}, "multipleOf"), ({"type": "integer", "enum": [1, 5], "minimum": 30}, "enum"),
    ({"type": "string", "minLength": 3, "maxLength": 1}, "maxLength"), (a_text("^ab$", minLength=3), "minLength"), (a_text("^x", format="uuid"), "format"), ({"type": "string", "format": "date", "maxLength": 3}, "format"),
    ({"type": "string", "enum": ["abc", "d"], "pattern": "^z"}, "pattern"), ({"allOf": [a_text("^a"), a_text("^b")]}, "pattern"),
    ({"type": "array", "minItems": 3, "maxItems": 2}, "maxItems"), ({"type": "array", "items": False, "minItems": 1}, "item 0"), ({"type": "array", "prefixItems": [{"type": "null"}, False], "minItems": 2}, "item 1"),
    ({"const": [1], "minItems": 2}, "minItems"), ({"const": [1], "items": {"type": "string"}}, "const"),
    ({"type": "object", "required": ["a"], "additionalProperties": False}, "'a'"), (an_object("a", a=False), "'a'"), (an_object("a", a=an_object("b", b={"type": "string", "enum": []})), "#/properties/a/properties/b"),
    ({"type": "object", "patternProperties": {"^x": False}, "required": ["xa"]}, "'xa'"), ({**an_object("xa", xa={"type": "string"}), "patternProperties": {"^x": {"type": "integer"}}}, "xa"),
    ({"type": "object", "minProperties": 2, "maxProperties": 1}, "maxProperties"), ({"type": "object", "minProperties": 2, "additionalProperties": False}, "minProperties"), ({"type": "object", "maxProperties": 0, "required": ["q"]}, "maxProperties"),
    ({"enum": [{"a": 1}], "required": ["b"]}, "enum"), (one_of({"type": "integer"}, {"type": "number"}, type="string"), "anyOf"),
    ({"allOf": [{"properties": {"a": {}}, "additionalProperties": False, "type": "object"}, {"required": ["b"]}]}, "'b'"),
]  # fmt: skip

REFUSED_HERE_ALONE: list[tuple[JsonValue, str]] = [
    # A device begins a value that has no end, or is longer than any answer; here it is said at once.
    ({"type": "array", "minItems": 1_000_000}, "minItems"),
    ({"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}}, "without end"),
    (a_text("^(a{1000}){30}$"), "complicated"),
    (
        {"type": "object", "minProperties": 2, "patternProperties": {"^x$": {}}, "additionalProperties": False},
        "minProperties",
    ),
    # Small differences in reading.
    (a_text("a\\"), "pattern"),
    (a_text("(?x)a b"), "pattern"),
]

FOLLOWED_HERE_ALONE: list[JsonValue] = [
    # llguidance gives up on whether there is such a text.
    a_text("x", minLength=60),
    # llguidance compares the options of `oneOf` before it looks behind `$ref`.
    defining(one_of({"$ref": "#/$defs/card"}, {"$ref": "#/$defs/cash"}), card=CARD, cash=CASH),
    defining(one_of({"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}), a={"type": "string"}, b={"type": "null"}),
]
