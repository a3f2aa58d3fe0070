"""Names and texts within the limits of RFC 6763, and nothing foreign that acts on a terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketserver.lan.names import Auth, Description, cut, instance_label, printable, text_record, txt_bytes


@pytest.mark.parametrize(
    ("wanted", "number", "label"),
    [
        ("pocketserver", 1, "pocketserver"),
        ("pocketserver", 2, "pocketserver (2)"),
        ('Ann\'s v1.2 \\ "box" é猫.local', 1, 'Ann\'s v1.2 \\ "box" é猫.local'),
        ("a\nb\x1b[31mc\x7f\x9b", 1, "ab[31mc"),
        ("e\u0301", 1, "é"),
        ("", 1, "pocketserver"),
        (" \t ", 1, "pocketserver"),
        ("...", 2, "pocketserver (2)"),
        ("x" * 70, 1, "x" * 63),
        ("x" * 70, 12, "x" * 58 + " (12)"),
        ("é" * 40, 1, "é" * 31),
        ("猫" * 40, 2, "猫" * 19 + " (2)"),
    ],
)
def test_an_instance_name_is_one_legal_label(wanted: str, number: int, label: str) -> None:
    assert instance_label(wanted, number) == label


@given(st.text(max_size=200), st.integers(1, 120))
def test_any_wanted_name_becomes_a_legal_one(wanted: str, number: int) -> None:
    label = instance_label(wanted, number)

    assert 0 < len(label.encode()) <= 63
    assert not any(ord(character) < 32 or ord(character) == 127 for character in label)


def test_the_text_record_says_how_to_talk_to_the_server() -> None:
    description = Description(version="0.1", model="tiny", context_tokens=4096, auth=Auth.NONE)

    assert text_record(description, "0011aabb") == {
        "txtvers": "1",
        "path": "/",
        "api": "openai",
        "base": "/v1",
        "auth": "none",
        "ver": "0.1",
        "id": "0011aabb",
        "state": "ready",
        "ctx": "4096",
        "model": "tiny",
    }
    assert next(iter(text_record(description, "0011aabb"))) == "txtvers"


@given(st.text(max_size=600), st.text(max_size=300))
def test_the_text_record_keeps_its_limits_whatever_the_model_is_called(model: str, version: str) -> None:
    pairs = text_record(Description(version=version, model=model, context_tokens=10**9), "0011aabb")

    assert txt_bytes(pairs) <= 400
    assert all(len(f"{key}={value}".encode()) <= 255 and len(key) <= 9 for key, value in pairs.items())


def test_a_long_model_name_is_cut_between_characters() -> None:
    model = text_record(Description(version="0.1", model="猫" * 300), "0011aabb")["model"]

    assert set(model) == {"猫"}
    assert 200 < len(model.encode()) <= 249


def test_cutting_never_leaves_half_a_character() -> None:
    assert cut("aé猫", 2) == "a"
    assert cut("aé猫", 3) == "aé"


def test_foreign_text_cannot_act_on_a_terminal() -> None:
    assert (
        printable("a\r\n\x1b[31mred\x9b\u202e\u200b é猫 \ufffd\\")
        == "a\\r\\n\\x1b[31mred\\x9b\\u202e\\u200b é猫 \ufffd\\"
    )
