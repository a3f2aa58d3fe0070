"""The chat examples run as they stand: the same five things in each language, through a server that is often busy."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pocketserver.testing.device import SimulatedServer
from tests.engines.upstream.processes import process
from tests.tools import install_packages, needs, run

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TEMPLATE = Path(__file__).resolve().parents[1] / "templates" / "tags.jinja"

PROGRAMS = {
    "python/chat_httpx.py": [sys.executable, "-W", "error"],
    "python/chat_openai.py": [sys.executable, "-W", "error"],
    "javascript/chat-fetch.js": ["node"],
    "javascript/chat-openai.js": ["node"],
    "curl/chat.sh": ["sh"],
    "powershell/chat.ps1": ["pwsh", "-NoProfile", "-File"],
}
"""By example, what runs it."""


def said_by(name: str, base_url: str, key: str) -> dict[str, str]:
    """What an example printed, by the word before each colon. Skipped where its language is not installed."""
    command = PROGRAMS[name]
    if name == "powershell/chat.ps1" and shutil.which("pwsh") is None:
        pytest.skip("pwsh is not installed; test_sources.py compares its requests with the curl example's")
    needs(command[0], *(["curl", "jq"] if command[0] == "sh" else []))
    folder = (EXAMPLES / name).parent
    if command[0] == "node":
        install_packages(folder)
    said = run([*command, Path(name).name], folder, OPENAI_BASE_URL=base_url, OPENAI_API_KEY=key)
    lines = said.strip().splitlines()
    return {word: text for word, _, text in (line.partition(": ") for line in lines)}


def check_forecast(text: str) -> None:
    forecast = json.loads(text)
    assert forecast.keys() == {"city", "celsius"}
    assert isinstance(forecast["city"], str)
    assert -90 <= forecast["celsius"] <= 60


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_gets_what_it_asks_for_from_a_phone_that_is_busy_every_second_time(
    name: str, pocketserver: SimulatedServer
) -> None:
    pocketserver.reply("Hello from the pocket.", match={"last_message": "Say hello."})
    pocketserver.reply("one two three", match={"last_message": "Count to three."})
    pocketserver.reply(tool_calls=[("get_weather", {"city": "Oslo"})], match={"last_message": "How warm"})
    pocketserver.reply("It is 21 degrees in Oslo.", match={"last_message": "21"})
    pocketserver.fail_next("model_busy", retry_after=0.1, when={"every": 2})

    said = said_by(name, pocketserver.base_url, pocketserver.api_key)

    check_forecast(said.pop("structured"))
    assert said == {
        "chat": "Hello from the pocket.",
        "stream": "one two three",
        "tools": "It is 21 degrees in Oslo.",
        "error": "model_not_found",
    }
    assert [request.status for request in pocketserver.requests] == [200, *[429, 200] * 4, 429, 404]
    pocketserver.assert_resilient()


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_answer_that_breaks_off_is_not_taken_for_a_whole_one(
    name: str, pocketserver_factory: Callable[..., SimulatedServer]
) -> None:
    server = pocketserver_factory()
    server.fail_next("drop_after_tokens", after_tokens=2, when={"match": {"last_message": "Count to three."}})
    with pytest.raises(pytest.fail.Exception, match="ended with"):
        said_by(name, server.base_url, server.api_key)


@pytest.mark.real_model
@pytest.mark.parametrize("name", ["python/chat_openai.py"])
def test_the_real_model_answers_it(name: str, real_server: tuple[str, str]) -> None:
    said = said_by(name, *real_server)

    assert said.keys() >= {"chat", "stream", "tools"}
    check_forecast(said["structured"])
    assert said["error"] == "model_not_found"


@pytest.fixture(scope="module")
def real_server(tmp_path_factory: pytest.TempPathFactory, default_model_path: Path):  # type: ignore[no-untyped-def]
    """The default model behind a template that can express tool calls: base URL and key."""
    words = ["-m", "pocketserver.cli.main", "serve", "--host", "127.0.0.1", "--port", "0", "--no-mdns", "--ready-json"]
    words += ["-", "--exit-on-stdin-close", "--tuning", "off", "--context", "2048", "--model", str(default_model_path)]
    words += ["--chat-template", str(TEMPLATE), "--home", str(tmp_path_factory.mktemp("home"))]
    with process(*words) as server:
        yield server.base_url, server.ready["api_key"]
