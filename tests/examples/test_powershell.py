"""Where no pwsh can run the PowerShell example, its requests are at least those of the curl example, which runs."""

import json
import re
from pathlib import Path
from typing import Any

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
