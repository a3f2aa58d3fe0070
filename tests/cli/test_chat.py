"""`pocketserver chat` on a pseudo-terminal and through pipes, against the simulator and hand-made servers."""

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pocketserver.cli.chat_client import base_url_of
from pocketserver.errors import UsageError
from pocketserver.gate.keys import KeyStore
from tests.terminal import Terminal, pocketserver
from tests.test_serve_command import Started

LIMIT_SECONDS = 60.0


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """The home of a machine on which no server runs."""
    return tmp_path / "elsewhere"


@pytest.fixture
def server(home: Path) -> Iterator[Started]:
    with serving(home) as started:
        yield started


@contextmanager
def serving(home: Path, *arguments: str, **environment: str) -> Iterator[Started]:
    started = Started(home, *arguments, environment=environment)
    try:
        yield started
    finally:
        started.process.kill()
        started.finish()


def chat(home: Path, *arguments: str, text: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        pocketserver("chat", *arguments),
        env={**os.environ, "POCKETSERVER_HOME": str(home), **environment},
        input=text if text is not None else "",
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


def sim(server: Started, path: str, body: dict[str, Any] | None = None) -> Any:
    """Ask the simulator's control listener."""
    request = urllib.request.Request(
        server.ready["control_url"] + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {server.ready['control_token']}"},
    )
    with urllib.request.urlopen(request, timeout=LIMIT_SECONDS) as response:
        return json.load(response)


def reply(server: Started, text: str, **more: Any) -> None:
    sim(server, "/rules", {"match": {}, "reply": {"text": text, **more}})


def terminal(home: Path, *arguments: str, **environment: str) -> Terminal:
    words = {"POCKETSERVER_HOME": str(home), **environment}
    return Terminal(pocketserver("chat", *arguments), columns=100, lines=40, environment=words)


# Through pipes


def test_a_question_in_a_pipe_prints_only_the_answer(server: Started, home: Path) -> None:
    reply(server, "Paris.", reasoning="Let me think.")
    asked = chat(home, server.ready["base_url"], text="What is the capital of France?\n")

    assert (asked.returncode, asked.stdout, asked.stderr) == (0, "Paris.\n", "")
    sent = sim(server, "/requests")["requests"][-1]["json"]
    assert sent["messages"] == [{"role": "user", "content": "What is the capital of France?\n"}]


def test_a_message_goes_to_this_machines_own_server_with_its_key(server: Started, home: Path) -> None:
    reply(server, "Hello.")
    asked = chat(home, "--message", "hi", "--system", "Be brief.")

    assert asked.stdout == "Hello.\n"
    assert [said["role"] for said in sim(server, "/requests")["requests"][-1]["json"]["messages"]] == ["system", "user"]


def test_the_homes_key_goes_to_no_other_server(home: Path) -> None:
    KeyStore(home).main_key()
    with http_server(models_only) as (url, seen):
        asked = chat(home, url, "--message", "hi")

    assert asked.returncode == 1
    assert seen
    assert all("Authorization" not in headers for headers in seen)


def test_a_wrong_key_is_said_in_clear_words(server: Started, elsewhere: Path) -> None:
    asked = chat(elsewhere, server.ready["base_url"], "--message", "hi", POCKETSERVER_API_KEY="sk-wrong-one-012345")

    assert asked.returncode == 1
    assert asked.stdout == ""
    assert len(asked.stderr.splitlines()) == 1
    assert "does not let us in" in asked.stderr
    assert "POCKETSERVER_API_KEY" in asked.stderr
    assert "sk-wrong" not in asked.stderr


def test_the_key_of_the_environment_is_used(server: Started, elsewhere: Path) -> None:
    asked = chat(elsewhere, server.ready["base_url"], "-m", "hi", POCKETSERVER_API_KEY=server.ready["api_key"])

    assert asked.returncode == 0
    assert asked.stdout.strip()


def test_nobody_there_is_said_in_clear_words(home: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        asked = chat(home, f"http://127.0.0.1:{unused.getsockname()[1]}", "--message", "hi")

    assert asked.returncode == 1
    assert "Nothing answers at" in asked.stderr
    assert "Traceback" not in asked.stderr


def test_without_a_server_and_a_person_the_url_is_asked_for(home: Path) -> None:
    asked = chat(home, "--message", "hi")

    assert asked.returncode == 2
    assert "discover" in asked.stderr


@pytest.mark.parametrize(("words", "text"), [(["--message", "  "], ""), ([], "\n")])
def test_no_question_is_a_usage_error(server: Started, home: Path, words: list[str], text: str) -> None:
    assert chat(home, *words, text=text).returncode == 2


def test_a_busy_server_is_asked_again(server: Started, home: Path) -> None:
    reply(server, "At last.")
    sim(server, "/faults", {"fault": "model_busy", "retry_after": 0.1, "when": {"next": 1}})
    asked = chat(home, "--message", "hi")

    assert (asked.returncode, asked.stdout) == (0, "At last.\n")
    assert asked.stderr.startswith("Waiting: ")


def test_an_answer_that_breaks_off_is_no_success(server: Started, home: Path) -> None:
    sim(server, "/faults", {"fault": "drop_after_tokens", "after_tokens": 3, "when": {"next": 1}})
    asked = chat(home, "--message", "hi")

    assert asked.returncode == 1
    assert asked.stdout
    assert "ended before" in asked.stderr or "broke" in asked.stderr


def test_a_refusal_says_the_servers_sentence(server: Started, home: Path) -> None:
    asked = chat(home, "--message", "hi", "--model", "nothing-like-it")

    assert asked.returncode == 1
    assert "nothing-like-it" in asked.stderr


def test_a_reader_who_has_had_enough_is_no_traceback(server: Started, home: Path) -> None:
    command = f"{sys.executable} -m pocketserver.cli.main chat --message hi | true"
    ran = subprocess.run(
        ["sh", "-c", command],
        env={**os.environ, "POCKETSERVER_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )

    assert "Traceback" not in ran.stderr
    assert "connection" not in ran.stderr


def test_a_server_of_another_kind_is_recognised(home: Path) -> None:
    with http_server(lambda handler: respond(handler, 200, "<html>a router</html>", "text/html")) as (url, _seen):
        asked = chat(home, url, "--message", "hi")

    assert asked.returncode == 1
    assert "does not speak the OpenAI chat API" in asked.stderr


def test_a_server_that_does_not_stream_is_understood(home: Path) -> None:
    with http_server(whole_answer) as (url, _seen):
        asked = chat(home, url, "--message", "hi")

    assert (asked.returncode, asked.stdout) == (0, "whole\n")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("192.168.1.20:8080", "http://192.168.1.20:8080/v1"),
        ("http://phone.local:8080/", "http://phone.local:8080/v1"),
        ("https://host/api/v1/", "https://host/api/v1"),
        ("http://[fd00::2]:8080/#key=sk-secret", "http://[fd00::2]:8080/v1"),
    ],
)
def test_addresses_as_people_write_them(typed: str, meant: str) -> None:
    assert base_url_of(typed) == meant


@pytest.mark.parametrize("typed", ["ftp://host", "http://", "http://user:pass@host", "http://host:99999"])
def test_what_is_no_address_is_refused(typed: str) -> None:
    with pytest.raises(UsageError):
        base_url_of(typed)


# On a terminal


def test_a_conversation_goes_on_until_new(server: Started, home: Path) -> None:
    with terminal(home) as person:
        person.until_shown("sim-1b", "Ctrl-D ends")
        reply(server, "First answer.")
        person.type("one\r")
        person.until_shown("First answer.", "tokens/s")
        person.type("two \\\rmore\r")
        person.until(lambda: person.shown.count("First answer.") == 2, "the second answer")
        second = sim(server, "/requests")["requests"][-1]["json"]["messages"]
        person.type("/new\r")
        person.until_shown("A new conversation.")
        person.type("/system Speak like a pirate.\r")
        person.until_shown("System: Speak like a pirate.")
        person.type("three\r")
        person.until(lambda: person.shown.count("First answer.") == 3, "the third answer")
        third = sim(server, "/requests")["requests"][-1]["json"]["messages"]
        person.type("/quit\r")

        assert person.ended() == 0
    assert [said["content"] for said in second] == ["one", "First answer.", "two \nmore"]
    assert [said["content"] for said in third] == ["Speak like a pirate.", "three"]


def test_ctrl_c_stops_the_answer_for_real_and_the_conversation_goes_on(home: Path) -> None:
    with serving(home, "--speed", "1", POCKETSERVER_TOKENS_PER_SECOND="2") as server, terminal(home) as person:
        person.until_shown("Ctrl-D ends")
        person.type("tell me\r")
        person.until(lambda: status(server)["state"] == "busy", "the server to be busy")
        person.until(lambda: len(person.shown.splitlines()[2].split()) > 1, "words")
        person.type("\x03")
        person.until_shown("(stopped)")
        person.until(lambda: status(server)["state"] == "idle", "the server to be free at once")
        person.type("\x04")

        assert person.ended() == 0


def status(server: Started) -> dict[str, Any]:
    answer: dict[str, Any] = sim(server, "/status")
    return answer


def test_thinking_is_dimmed_and_foreign_text_is_harmless(server: Started, home: Path) -> None:
    reply(server, "Answer \x1b]0;owned\x07 here.", reasoning="Hmm, wait.")
    with terminal(home) as person:
        person.until_shown("Ctrl-D ends")
        person.type("x\r")
        person.until_shown("Hmm, wait.", "here.")

        assert b"\x1b[2mHmm" in person.raw
        assert b"\x1b]0;" not in person.raw


def test_without_colours_thinking_is_marked_by_a_word(server: Started, home: Path) -> None:
    reply(server, "Answer.", reasoning="Hmm.")
    with terminal(home, NO_COLOR="1") as person:
        person.until_shown("Ctrl-D ends")
        person.type("x\r")
        person.until_shown("(thinking) Hmm.", "Answer.")

        assert b"\x1b[2m" not in person.raw


def test_busy_is_said_and_waited_for(server: Started, home: Path) -> None:
    reply(server, "My turn.")
    sim(server, "/faults", {"fault": "model_busy", "retry_after": 0.3, "when": {"next": 2}})
    with terminal(home) as person:
        person.until_shown("Ctrl-D ends")
        person.type("x\r")
        person.until_shown("busy: ", "My turn.")


def test_a_missing_key_is_asked_for_and_not_shown(server: Started, elsewhere: Path) -> None:
    with terminal(elsewhere, server.ready["base_url"]) as person:
        person.until_shown("API key for", "(not shown)")
        person.type("sk-not-the-right-one\r")
        person.until(lambda: person.shown.count("(not shown)") == 2, "to be asked again")
        person.type(server.ready["api_key"] + "\r")
        person.until_shown("/help lists the commands")

        assert server.ready["api_key"].encode() not in person.raw


def test_a_server_that_goes_and_comes_back(home: Path) -> None:
    key = {"POCKETSERVER_API_KEY": "sk-the-same-key-for-both-0123"}
    with serving(home, **key) as server:
        port = str(server.ready["port"])
        person = terminal(home, **key)
        person.until_shown("Ctrl-D ends")
    with person:
        person.type("anybody?\r")
        person.until_shown("Nothing answers at", "/again sends")
        with serving(home, "--port", port, **key) as again:
            reply(again, "Back again.")
            person.type("/again\r")
            person.until_shown("Back again.")
            asked = sim(again, "/requests")["requests"][-1]["json"]["messages"]

    assert [said["content"] for said in asked] == ["anybody?"]


def test_models_are_listed_and_changed_and_the_conversation_saved(server: Started, home: Path, tmp_path: Path) -> None:
    reply(server, "Yes.")
    with terminal(home) as person:
        person.until_shown("Ctrl-D ends")
        person.type("/model\r")
        person.until_shown("* sim-1b")
        person.type("really?\r")
        person.until_shown("Yes.", "tokens")
        for name in ("talk.json", "talk.md"):
            person.type(f"/save {tmp_path / name}\r")
            person.until(lambda name=name: (tmp_path / name).exists(), "the file")
        person.type(f"/save {tmp_path / 'talk.md'}\r")
        person.until_shown("exists already")
        person.type("/nonsense\r")
        person.until_shown("There is no command /nonsense")

    saved = json.loads((tmp_path / "talk.json").read_text())
    assert saved["messages"] == [{"role": "user", "content": "really?"}, {"role": "assistant", "content": "Yes."}]
    assert (tmp_path / "talk.md").read_text() == "## user\n\nreally?\n\n## assistant\n\nYes.\n"


def test_of_several_own_servers_one_is_chosen(server: Started, home: Path) -> None:
    with serving(home) as other:
        with terminal(home) as person:
            person.until_shown("Which one? [1]", server.ready["base_url"], other.ready["base_url"])
            person.type("2\r")
            person.until_shown("/help lists the commands")
        assert chat(home, "--message", "hi").returncode == 2
        assert chat(home, "--message", "hi", "--port", str(other.ready["port"])).returncode == 0


# Servers made by hand


def respond(
    handler: http.server.BaseHTTPRequestHandler, status: int, body: str, kind: str = "application/json"
) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(body.encode())))
    handler.end_headers()
    handler.wfile.write(body.encode())


def models_only(handler: http.server.BaseHTTPRequestHandler) -> None:
    found = handler.path == "/v1/models"
    respond(handler, 200 if found else 404, json.dumps({"data": [{"id": "m"}]}) if found else "{}")


def whole_answer(handler: http.server.BaseHTTPRequestHandler) -> None:
    if handler.path == "/v1/models":
        models_only(handler)
        return
    choice = {"index": 0, "message": {"role": "assistant", "content": "whole"}, "finish_reason": "stop"}
    respond(handler, 200, json.dumps({"choices": [choice], "usage": {"completion_tokens": 1}}))


@contextmanager
def http_server(
    answer: Callable[[http.server.BaseHTTPRequestHandler], None],
) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server whose every answer is made by one function; yields its URL and the headers that it was sent."""
    seen: list[dict[str, str]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(dict(self.headers))
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer(self)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.server_port}", seen
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()
