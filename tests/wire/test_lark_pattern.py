"""A grammar of a regular language and its expression match the same texts; others say why they have none."""

import re

import pytest

from pocketserver.wire.lark_pattern import NotRegular, pattern_of
from tests.wire.lark_grammars import PATCH_GRAMMAR

GOOD_PATCH = """*** Begin Patch
*** Update File: a/b.py
@@ def f():
-    return 1
+    return "2"
*** End of File
*** Add File: c.txt
+
*** End Patch"""


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        (GOOD_PATCH, True),
        (GOOD_PATCH + "\n", True),
        (GOOD_PATCH.replace("*** End Patch", ""), False),
        (GOOD_PATCH.replace("+    return", "    return"), True),
        (GOOD_PATCH.replace("+    return", "return"), False),
        ("*** Begin Patch\n*** End Patch", False),
        ('{"patch": 1}', False),
    ],
)
def test_the_grammar_of_a_patch(text: str, matches: bool) -> None:
    assert (re.fullmatch(pattern_of(PATCH_GRAMMAR), text) is not None) is matches


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('start: "a" | "b"', ["a", "b"], ["ab", ""]),
        ('start: "a.b" "c"?', ["a.b", "a.bc"], ["axb"]),
        ('start: ("x" | "y")* [ "z" ]', ["", "xyz", "z"], ["zx"]),
        ('start: ["z"]+', ["", "zz"], ["y"]),
        ('start: "a" ~ 2', ["aa"], ["a", "aaa"]),
        ('start: "a" ~ 1..3', ["a", "aaa"], ["aaaa"]),
        ('?start.2: word ("," word)*\n!word: WORD\nWORD: /[a-z]+/', ["a,bc"], ["a,", "A"]),
        (r'start: "\n\t\"\\" "A" "\x42"', ['\n\t"\\AB'], ["n"]),
        ("start: /a\\/b/", ["a/b"], ["ab"]),
        ("%import common (INT, WS_INLINE)\nstart: INT WS_INLINE INT", ["1 \t23"], ["1", "12"]),
        ("%import common.NUMBER -> N\nstart: N", ["1.5e3", "7"], ["e"]),
        ("// first\nstart: A // the rule\nA: B\nB: \"x\"", ["x"], ["y"]),
        ('start: a\n   | "c"\na: "b" -> named', ["b", "c"], ["bc"]),
    ],
)  # fmt: skip
def test_every_part_of_the_language_that_is_read(grammar: str, good: list[str], bad: list[str]) -> None:
    pattern = re.compile(pattern_of(grammar))

    assert [text for text in good if not pattern.fullmatch(text)] == []
    assert [text for text in bad if pattern.fullmatch(text)] == []


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('start: "(" start ")" | "x"', "holds itself"),
        ('start: a\na: "x" b\nb: a?', "holds itself"),
        ("start: missing", "no rule missing"),
        ("other: /x/", "no rule start"),
        ('start: "a" "b"\n%ignore " "', "%ignore"),
        ("%import python.NAME\nstart: NAME", "%import"),
        ("%import common.SH_COMMENT\nstart: SH_COMMENT", "SH_COMMENT"),
        ('start: "a"i', "case"),
        ("start: /a/i", "flags"),
        ("start: %json {}", "unknown|uses"),
        ("start: <[12]>", "unknown"),
        ('start: "a".."z"', "unknown"),
        ('start: ("a"', "not closed"),
        ('start: "a" )', "should end"),
        ('start: * "a"', "before it"),
        ('"a"', "instead of a rule"),
        ("start{x}: x", "instead of a rule|unknown"),
        ("start: /" + "a" * 100_001 + "/", "longer"),
        ("\n".join(["start: r0", *[f"r{n}: r{n + 1} r{n + 1}" for n in range(40)], 'r40: "x"']), "too long"),
        ("start: " + "r " * 9000 + "\nr: /" + "a" * 9000 + "/", "too long"),
        ("start: " + "(" * 5000 + '"a"' + ")" * 5000, "too deep"),
        ("\n".join(["start: r0", *[f"r{n}: r{n + 1}" for n in range(3000)], 'r3000: "x"']), "too deep"),
    ],
)
def test_what_has_no_expression_says_why(grammar: str, reason: str) -> None:
    with pytest.raises(NotRegular, match=reason):
        pattern_of(grammar)
