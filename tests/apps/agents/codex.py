"""Codex, `codex exec`: a tool's round trip, and what it does when the conversation is too long for the model."""

import json
from collections.abc import Callable
from typing import Any

from desk import PACKAGES, Desk, as_text

[CODEX] = PACKAGES.glob("@openai/codex-*/vendor/*/bin/codex")
RESPONSES = "/v1/responses"
FREE = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
CHECKPOINT = "CONTEXT CHECKPOINT COMPACTION"
PROVIDER = """
model_provider = "pocketserver"
model = {model}
{more}
[model_providers.pocketserver]
name = "pocketserver"
base_url = {base_url}
env_key = "POCKETSERVER_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""


def configure(desk: Desk, more: str = "", model: str | None = None) -> None:
    folder = desk.home / ".codex"
    folder.mkdir(exist_ok=True)
    base_url, name = json.dumps(desk.server.base_url), json.dumps(model or desk.server.model)
    (folder / "config.toml").write_text(PROVIDER.format(base_url=base_url, model=name, more=more))


def codex(desk: Desk, *words: str, fails: bool = False) -> list[Any]:
    """One turn: the items and errors that it came to."""
    done = desk.try_to_run([str(CODEX), "exec", *words], POCKETSERVER_KEY=desk.server.api_key)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode != 0) is fails, f"{done.stdout}\n{done.stderr}"
    return [event.get("item") or event for event in events if event["type"] in {"item.completed", "error"}]


def test_it_runs_a_command_and_tells_the_model_what_came_of_it(desk: Callable[[int], Desk]) -> None:
    at = desk(64_000)
    configure(at)
    call = ("exec_command", {"cmd": "echo hello-from-$((40 + 2))"})
    at.server.reply("I run it.", calls=[call], last_message="run the greeting", has_tools=True, times=1)
    at.server.reply("The command said hello.", last_message="hello-from-42")

    items = codex(at, *FREE, "Please run the greeting.")

    [command] = [item for item in items if item["type"] == "command_execution"]
    assert (command["exit_code"], command["aggregated_output"]) == (0, "hello-from-42\n")
    assert items[-1]["text"] == "The command said hello."
    assert [request["status"] for request in at.asked(RESPONSES)] == [200, 200]


def test_it_compacts_near_the_limit_that_it_was_told_and_goes_on(desk: Callable[[int], Desk]) -> None:
    """The checkpoint is refused twice as too long: Codex leaves out its oldest items and asks again."""
    at = desk(12_000)
    configure(at, "model_context_window = 12000\nmodel_auto_compact_token_limit = 10000")
    at.server.reply("word " * 1500, last_message="Tell me more")
    at.server.reply("They talked about the colour teal.", last_message=CHECKPOINT)
    too_long = {"last_message": CHECKPOINT}
    at.server.fail_next("context_length_exceeded", when={"next": 2, "match": too_long})
    requests: list[Any] = []
    for number in range(8):
        codex(at, *(["resume", "--last"] if number else []), *FREE, f"Tell me more, number {number}")
        requests = at.asked(RESPONSES)
        if len(requests) > 1:
            break

    *refused, checkpoint, answered = requests
    assert [request["error"] for request in refused] == ["context_length_exceeded"] * 2
    lengths = [len(request["json"]["input"]) for request in (*refused, checkpoint)]
    assert lengths == sorted(lengths, reverse=True)
    assert len(set(lengths)) == 3
    assert "the colour teal" in as_text(answered)
    assert f"Tell me more, number {number}" in as_text(answered)
    assert len(as_text(answered)) < len(as_text(checkpoint))


def test_a_prompt_that_cannot_be_shortened_ends_with_a_clear_word(desk: Callable[[int], Desk]) -> None:
    at = desk(8_192)
    configure(at)
    *_, last = codex(at, *FREE, "word " * 9000, fails=True)
    assert "ran out of room in the model's context window" in last["message"]
    assert [request["status"] for request in at.asked(RESPONSES)] == [400]
