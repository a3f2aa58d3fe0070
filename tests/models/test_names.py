"""Names of models: one grammar, compared without case, and a file name that every system takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketserver.models.names import full_name, id_of_stem, key_of, model_id, stem_for

HOSTILE = (
    *(
        "",
        ".",
        "..",
        "../x",
        "a/../../b",
        "a/..",
        "..\\x",
        "C:\\x",
        "/tmp/x",
        "a//b",
        "a/",
        "/a",
        "a\0b",
        "a b",
        "ti\nny",
    ),
    *("%2e%2e/x", "tiny:", ":latest", "tiny:a:b", "a/b/c/d", "-rf", ".hidden", "a..b", "x" * 81, "a:" + "t" * 81, "é"),
    *("con", "NUL.x", "com1", "a@b", "a+b", "~/x", "a*", "a?", "\ud800", "a:..", "a/.b", "aux:latest"),
)


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_a_name_has_no_file(name: str) -> None:
    assert stem_for(name) is None


@pytest.mark.parametrize(
    ("name", "short", "full", "stem"),
    [
        ("tiny", "tiny", "tiny:latest", "tiny"),
        ("tiny:latest", "tiny", "tiny:latest", "tiny"),
        ("tiny:Latest", "tiny", "tiny:latest", "tiny"),
        ("Tiny:Q4_K_M", "Tiny:Q4_K_M", "Tiny:Q4_K_M", "Tiny@Q4_K_M"),
        ("ns/tiny:q4", "ns/tiny:q4", "ns/tiny:q4", "ns+tiny@q4"),
        ("library/tiny", "tiny", "tiny:latest", "tiny"),
        ("registry.ollama.ai/library/tiny:latest", "tiny", "tiny:latest", "tiny"),
        ("registry.ollama.ai/ns/tiny", "ns/tiny", "ns/tiny:latest", "ns+tiny"),
        ("hub.example/ns/tiny:q4", "hub.example/ns/tiny:q4", "hub.example/ns/tiny:q4", "hub.example+ns+tiny@q4"),
        ("hub.example:443/ns/t", "hub.example:443/ns/t", "hub.example:443/ns/t:latest", "hub.example@443+ns+t"),
        ("SmolLM2-135M.Q4_1", "SmolLM2-135M.Q4_1", "SmolLM2-135M.Q4_1:latest", "SmolLM2-135M.Q4_1"),
    ],
)
def test_all_ways_to_say_a_name_lead_to_one_file(name: str, short: str, full: str, stem: str) -> None:
    assert (model_id(name), full_name(name), stem_for(name)) == (short, full, stem)
    assert id_of_stem(stem) == short
    assert key_of(name) == key_of(short.upper()) == key_of(full.lower())


@pytest.mark.parametrize("stem", ["My model (1)", "a+b+c+d", "a@", "model~1", "été"])
def test_a_file_with_another_kind_of_name_keeps_it(stem: str) -> None:
    assert id_of_stem(stem) == stem


words = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,12}", fullmatch=True)


@given(st.tuples(st.lists(words, min_size=1, max_size=3), st.none() | words))
def test_a_name_comes_back_from_its_file(parts: tuple[list[str], str | None]) -> None:
    name = "/".join(parts[0]) + (f":{parts[1]}" if parts[1] else "")
    stem = stem_for(name)

    if stem is not None:
        assert not set('/\\:*?"<>|').intersection(stem)
        assert key_of(id_of_stem(stem)) == key_of(name)


@given(st.text())
def test_any_text_can_be_looked_up(text: str) -> None:
    assert key_of(text) == key_of(full_name(text))
