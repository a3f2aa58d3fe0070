"""Claude Code, `claude -p`: a tool's round trip, and what it does when the conversation is too long for the model."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from desk import PACKAGES, Desk, as_text

[CLAUDE] = PACKAGES.glob("@anthropic-ai/claude-code-*/claude")
MESSAGES = "/v1/messages"
SUMMARY = "<analysis>Short.</analysis><summary>The user had words noted, and likes the colour teal.</summary>"


def claude(desk: Desk, *words: str, model: str = "claude-opus-4-8") -> dict[str, Any]:
    """One question, and what it came to."""
    said = desk.run(
        [str(CLAUDE), "-p", *words, "--output-format", "json"],
        ANTHROPIC_BASE_URL=desk.server.origin,
        ANTHROPIC_API_KEY=desk.server.api_key,
        ANTHROPIC_MODEL=model,
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        DISABLE_AUTOUPDATER="1",
    )
    result: dict[str, Any] = json.loads(said)
    assert not result["is_error"], result
    return result


@pytest.mark.parametrize("model", ["claude-opus-4-8", "claude-haiku-4-5-20251001"])
def test_it_runs_a_tool_and_tells_the_model_what_came_of_it(desk: Callable[[int], Desk], model: str) -> None:
    at = desk(64_000)
    call = ("Bash", {"command": "echo hello-from-$((40 + 2))", "description": "Greet"})
    at.server.reply("I run it.", calls=[call], last_message="run the greeting", has_tools=True, times=1)
    at.server.reply("The tool said hello.", last_message="hello-from-42")

    result = claude(at, "Please run the greeting.", "--allowedTools", "Bash(echo:*)", model=model)

    assert result["result"] == "The tool said hello."
    first, second = at.asked(MESSAGES)
    assert [first["status"], second["status"]] == [200, 200]
    assert result["usage"]["input_tokens"] > 10_000, "two dozen tools count"
    [call_block] = [block for message in second["json"]["messages"] for block in message["content"] if is_call(block)]
    assert call_block["input"]["command"] == call[1]["command"]


def test_a_conversation_that_grew_too_long_is_compacted_and_goes_on(desk: Callable[[int], Desk]) -> None:
    at = desk(20_000)
    at.server.reply("Noted.", last_message="Note this")
    at.server.reply(SUMMARY, last_message="summary of the conversation")
    resumed: list[str] = []
    requests: list[Any] = []
    for number in range(12):
        result = claude(at, f"Note this, number {number}: {'word ' * 1500}", *resumed)
        assert result["result"] == "Noted."
        resumed = ["--resume", result["session_id"]]
        requests = at.asked(MESSAGES)
        if requests[0]["status"] != 200:
            break

    refused, *_, summarised, answered = requests
    assert (refused["status"], refused["error"]) == (400, "context_length_exceeded")
    assert (summarised["status"], answered["status"]) == (200, 200)
    assert "summary of the conversation" in as_text(summarised)
    assert "likes the colour teal" in as_text(answered)
    assert f"Note this, number {number}" in as_text(answered)

    assert claude(at, "Note this: the end.", *resumed)["result"] == "Noted."
    [last] = at.asked(MESSAGES)
    assert "likes the colour teal" in as_text(last)


def is_call(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "tool_use"
