"""The live view of `serve`, on real pseudo-terminals: what a person sees, and that the terminal comes back whole."""

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from pocketserver.cli.scene import Fact, Scene, folded, picture
from pocketserver.telemetry.log_lines import RequestLine
from tests.terminal import Terminal, pocketserver

SIZES = [(80, 24), (40, 24), (120, 40), (40, 60), (20, 8), (300, 10)]
HOST = "0.0.0.0"
SLOW = {"POCKETSERVER_TOKENS_PER_SECOND": "20"}


class View(Terminal):
    """A server of the simulator in a terminal."""

    def __init__(self, folder: Path, *arguments: str, host: str = HOST, **options: Any) -> None:
        self._ready = folder / "ready.json"
        words = ("sim", "serve", "--host", host, "--port", "0", "--no-mdns", "--home", str(folder / "home"))
        super().__init__(pocketserver(*words, "--ready-json", str(self._ready), *arguments), **options)
        self.until(self._ready.exists, "the server to be ready")
        self.ready: dict[str, Any] = json.loads(self._ready.read_text())

    def ask(self, path: str, body: dict[str, Any] | None = None, key: str | None = None) -> Any:
        request = urllib.request.Request(
            self.ready["base_url"].removesuffix("/v1") + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {key or self.ready['api_key']}"},
        )
        try:
            return urllib.request.urlopen(request, timeout=30)
        except urllib.error.HTTPError as error:
            error.close()
            return error

    @contextmanager
    def answering(self) -> Iterator[Any]:
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        with self.ask("/v1/chat/completions", body) as response:
            response.readline()
            yield response


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def test_the_view_shows_the_address_the_code_who_is_answered_and_the_last_requests(folder: Path) -> None:
    with View(folder, environment=SLOW, columns=110, lines=40) as view:
        view.until_shown("idle", "Base URL", "█▀▀▀▀▀█", "pocketserver key show", "sim-1b", "Page")
        with view.answering() as answer:
            view.until_shown("busy: main", "tokens/s")
            view.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
            view.until_shown("429", "model_busy")
            answer.read()
        view.until_shown("idle; the last answer had 40 tokens")
        view.until(lambda: answered(view.shown), "the request's line")

        assert view.colours
        assert view.ready["api_key"].encode() not in view.raw


def answered(shown: str) -> bool:
    """Whether a line says all of an answered request: path, status, rate, and whose it was."""
    rows = [line for line in shown.splitlines() if "/v1/chat/completions" in line and " 200 " in line]
    return any("tok/s" in row and row.endswith("main") for row in rows)


def fills(lines: list[str]) -> bool:
    """Whether one whole picture is there, from the title to the last line."""
    addresses = sum("Base URL" in line for line in lines)
    return lines[0].startswith("pocketserver") and "Ctrl-C ends" in lines[-1] and addresses == 1


def test_who_waits_is_said(folder: Path) -> None:
    with View(folder, "--admission", "queue", environment=SLOW) as view, view.answering():
        body = {"messages": [{"role": "user", "content": "hi"}]}
        waiting = os.fork()
        if waiting == 0:  # a second client, that waits for its turn
            view.ask("/v1/chat/completions", body)
            os._exit(0)
        try:
            view.until_shown("Queue", "1 waiting")
        finally:
            os.kill(waiting, signal.SIGKILL)
            os.waitpid(waiting, 0)


@pytest.mark.parametrize(("columns", "lines"), SIZES[:4])
def test_the_view_follows_the_size_of_the_terminal(folder: Path, columns: int, lines: int) -> None:
    with View(folder, columns=columns, lines=lines) as view:
        view.until_shown("Base URL", "Ctrl-C ends")
        view.ask("/v1/models")
        view.until_shown("/v1/models", "200")
        for width, height in ((columns - 3, lines - 5), (columns + 9, lines + 3), (columns, lines)):
            view.resize(width, height)
            view.until(lambda: fills(view.shown.splitlines()), "the view to fill the new size")


@pytest.mark.parametrize("end", ["ctrl-c", "sigterm"])
def test_ending_the_server_brings_the_terminal_back(folder: Path, end: str) -> None:
    with View(folder) as view:
        view.until_shown("idle")
        assert (view.on_other_screen, view.cursor_hidden, view.echoes) == (True, True, False)
        view.type("typed ahead\n")
        if end == "ctrl-c":
            view.type("\x03")
        else:
            view.process.send_signal(signal.SIGTERM)

        assert view.ended() == 0
        assert (view.on_other_screen, view.cursor_hidden, view.echoes) == (False, False, True)
        assert "typed ahead" not in view.text()


def test_a_second_ctrl_c_during_the_grace_leaves_a_whole_terminal(folder: Path) -> None:
    slow = {"POCKETSERVER_TOKENS_PER_SECOND": "0.01", "POCKETSERVER_SHUTDOWN_GRACE_SECONDS": "3600"}
    with View(folder, environment=slow) as view, view.answering():
        view.until_shown("busy: main")
        view.type("\x03")
        view.until(lambda: "Stopping" in view.text(), "the goodbye")
        view.type("\x03")

        assert view.ended() == 1
        assert (view.on_other_screen, view.cursor_hidden, view.echoes) == (False, False, True)


def test_ctrl_backslash_cancels_the_answer_and_the_view_goes_on(folder: Path) -> None:
    with View(folder, environment={"POCKETSERVER_TOKENS_PER_SECOND": "0.01"}) as view, view.answering() as answer:
        view.until_shown("busy: main")
        view.type("\x1c")
        assert b"request_cancelled" in answer.read()
        view.until_shown("idle", "request_cancell")


def test_ctrl_z_gives_the_terminal_back_and_fg_takes_it_again(folder: Path) -> None:
    with View(folder) as view:
        view.until_shown("idle")
        view.process.send_signal(signal.SIGTSTP)
        view.until(lambda: not view.on_other_screen, "the usual screen")
        view.until(lambda: "T" in Path(f"/proc/{view.process.pid}/stat").read_text().split()[2], "it to be stopped")
        assert view.echoes

        view.process.send_signal(signal.SIGCONT)
        view.until(lambda: view.on_other_screen, "the view")
        view.until_shown("idle")


def test_warnings_stand_in_the_view_and_messages_are_said_again_afterwards(folder: Path) -> None:
    with View(folder, "--auth", "off") as view:
        view.until_shown("WARNING: authentication is off", "none asked for", "Ready: sim-1b")
        view.type("\x03")
        view.ended()
        after = view.text().rpartition("Ctrl-\\ cancels the running answer")[2]

        assert "Ready: sim-1b" in after


def test_without_colours_nothing_is_coloured(folder: Path) -> None:
    with View(folder, environment={"NO_COLOR": "1"}) as view:
        view.until_shown("idle", "Base URL")

        assert view.colours == set()


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["--plain"], {}),
        (["--log", "json"], {}),
        ([], {"TERM": "dumb"}),
        ([], {"POCKETSERVER_PLAIN": "true"}),
        ([], {"PYTHONIOENCODING": "ascii"}),
    ],
)
def test_lines_come_where_they_are_wanted(folder: Path, arguments: list[str], environment: dict[str, str]) -> None:
    with View(folder, *arguments, environment=environment, host="127.0.0.1") as view:
        view.until(lambda: "Ready: sim-1b" in view.text(), "the plain line")
        view.ask("/v1/models")
        view.until(lambda: "/v1/models" in view.text(), "the request's line")

        assert not view.on_other_screen
        assert view.echoes


def test_an_idle_view_writes_nothing(folder: Path) -> None:
    with View(folder) as view:
        view.until_shown("idle", "Ready")
        time.sleep(0.6)  # the last words of the start are on the screen by now
        before = len(view.raw)
        time.sleep(1.5)

        assert len(view.raw) - before < 2 * 80 * 24 * 4  # at most the minute has changed meanwhile


# The picture alone, from plain values


def scene(**changes: Any) -> Scene:
    values: dict[str, Any] = {
        "title": "pocketserver 1.0, profile pocketllm",
        "facts": (Fact(label="Base URL", value="http://192.168.1.20:8080/v1"), Fact(label="Model", value="m" * 90)),
        "state": "busy",
        "doing": "busy: phone, 12 tokens, 40.0 tokens/s",
        "rates": tuple(float(number) for number in range(90)),
        "requests": tuple(request(path=f"/v1/number/{number}") for number in range(50)),
        "notes": ("12:00:00 warning something " + "long " * 40, "界" * 70),
        "warnings": ("WARNING: authentication is off.",),
    }
    return Scene(**{**values, **changes})


def request(**changes: Any) -> RequestLine:
    values: dict[str, Any] = {"method": "POST", "path": "/v1/chat/completions", "status": 200, "seconds": 1.25}
    values |= {"peer": "192.168.1.7", "request_id": "r1", "key_name": "phone", "tokens_per_second": 41.2}
    return RequestLine(**{**values, **changes})


CODE = [Text("█" * 33)] * 17


@pytest.mark.parametrize("code", [CODE, []])
@pytest.mark.parametrize(("width", "height"), [*SIZES, (1, 1), (10, 2), (79, 18)])
def test_the_picture_fits_every_size(width: int, height: int, code: list[Text]) -> None:
    lines = picture(scene(), code, width, height)

    assert len(lines) == height
    assert all(line.cell_len <= width for line in lines)


def test_the_newest_request_is_always_there() -> None:
    for width, height in SIZES[:4]:
        text = "\n".join(line.plain for line in picture(scene(), CODE, width, height))
        assert "/49 " in text


def test_a_narrow_line_still_has_every_part() -> None:
    [line] = [line.plain for line in picture(scene(requests=(request(),)), [], 40, 24) if "POST" in line.plain]

    assert "completions" in line
    assert line.split()[2:] == ["200", "1.2s", "41/s", "phone"]


def test_foreign_text_cannot_act_upon_the_terminal() -> None:
    hostile = request(path="/\x1b[2J\x1b]0;x\x07", key_name="\x9bname", method="GET\n")
    lines = picture(scene(requests=(hostile,), notes=("\x1b[31mred",)), [], 100, 30)

    assert not any(character in line.plain for line in lines for character in "\x1b\x9b\n\x07")


def test_folding_loses_no_word() -> None:
    words = "one two three four five six seven"
    assert " ".join(line.plain.strip() for line in folded(Text(words), 12)) == words
