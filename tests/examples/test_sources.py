"""Examples that cannot run everywhere ask at least for what the curl example asks for, which runs.

PowerShell's runs where `pwsh` is installed (test_chat_examples); Swift's and Kotlin's are not run at all, and say so.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CURL = (EXAMPLES / "curl" / "chat.sh").read_text(encoding="utf-8")
POWERSHELL = (EXAMPLES / "powershell" / "chat.ps1").read_text(encoding="utf-8")


def bodies(pattern: str, script: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in re.findall(pattern, script, re.DOTALL)]


def test_its_bodies_are_those_of_the_curl_example() -> None:
    asked = bodies(r"<<'JSON'\n(.*?)\nJSON\n", CURL)

    assert len(asked) == 5
    assert bodies(r"@'\n(.*?)\n'@", POWERSHELL) == asked


def test_its_addresses_and_its_key_are_those_of_the_curl_example() -> None:
    paths = set(re.findall(r"\$OPENAI_BASE_URL(/[\w/]+)", CURL))

    assert paths == set(re.findall(r"\$env:OPENAI_BASE_URL(/[\w/]+)", POWERSHELL)) == {"/chat/completions"}
    assert "Authorization: Bearer $OPENAI_API_KEY" in CURL
    assert 'AuthenticationHeaderValue]::new("Bearer", $env:OPENAI_API_KEY)' in POWERSHELL


def test_it_adds_to_the_second_request_what_the_curl_example_adds() -> None:
    for word in ("tool_call_id", '"tool"', "celsius", '"none"'):
        assert word in CURL
        assert word in POWERSHELL


def test_its_brackets_and_strings_close() -> None:
    script = re.sub(r"@'\n.*?\n'@|#[^\n]*", "", POWERSHELL, flags=re.DOTALL)
    script = re.sub(r'"(?:`.|[^"`])*"', '""', script)
    for opening, closing in ("()", "[]", "{}"):
        assert script.count(opening) == script.count(closing), opening


SOURCES = {
    "swift": (EXAMPLES / "swift" / "Chat.swift").read_text(encoding="utf-8"),
    "kotlin": (EXAMPLES / "kotlin" / "Chat.kt").read_text(encoding="utf-8"),
}


def names_and_sentences(value: object) -> set[str]:
    """Every name of a field and every text in a body."""
    match value:
        case dict():
            return set(value).union(*map(names_and_sentences, value.values()))
        case list():
            return set[str]().union(*map(names_and_sentences, value))
        case str():
            return {value}
        case _:
            return set()


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_source_that_is_not_run_says_so_and_uses_the_same_words(source: str) -> None:
    assert "Not compiled or run by this project's tests" in source
    for body in bodies(r"<<'JSON'\n(.*?)\nJSON\n", CURL):
        for word in names_and_sentences(body):
            assert f'"{word}"' in source, word
    for word in ("Bearer ", "Retry-After", "429", "data: [DONE]", "tool_call_id", '"none"', "chat/completions"):
        assert word in source, word


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_its_brackets_close(source: str) -> None:
    bare = re.sub(r'"""|"(?:\\.|[^"\\])*"|//[^\n]*', "", source)
    for opening, closing in ("()", "[]", "{}"):
        assert bare.count(opening) == bare.count(closing), opening


def test_the_schema_in_kotlin_is_that_of_the_curl_example() -> None:
    schema, tool = (json.loads(text) for text in re.findall(r'= """(.*?)"""', SOURCES["kotlin"], re.DOTALL))
    _, _, structured, tools, _ = bodies(r"<<'JSON'\n(.*?)\nJSON\n", CURL)

    assert schema == structured["response_format"]["json_schema"]["schema"]
    assert [tool] == tools["tools"]
