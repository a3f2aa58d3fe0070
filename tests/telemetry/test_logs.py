"""Logs: one line a request, nothing secret, nothing forged, and never a wait for whoever reads them."""

import asyncio
import contextlib
import io
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketserver.telemetry import logs
from pocketserver.telemetry.log_lines import MessageLine, Redaction, RequestLine, as_json, as_text, escaped
from pocketserver.telemetry.logs import LogFormat, LogLevel
from tests.waiting import until

KEY = "sk-Abcdefgh_ijklmnop-qrstuvwxyz0123456789ABCDEFG"


def request_line(**changes: object) -> RequestLine:
    line = RequestLine(
        method="POST",
        path="/v1/chat/completions",
        route="/v1/chat/completions",
        status=200,
        seconds=2.6,
        peer="192.168.1.7",
        request_id="1f2e",
        key_name="ann",
        model="tiny",
        prompt_tokens=100,
        completion_tokens=40,
        tokens_per_second=19.5,
    )
    return msgspec.structs.replace(line, **changes)


def logged(
    act: Callable[[logs.ServerLog], object], log: LogFormat = "text", level: LogLevel = "info", **kwargs: object
) -> str:
    """What stands in the stream after the log was closed."""
    stream = io.StringIO()
    with logs.configure(log, level=level, stream=stream, **kwargs) as server_log:  # type: ignore[arg-type]
        act(server_log)
    return stream.getvalue()


# Lines


def test_a_request_is_one_line_with_what_matters() -> None:
    text = logged(lambda log: log.request(request_line()))

    assert re.fullmatch(
        r"\d\d:\d\d:\d\d POST /v1/chat/completions 200 2\.600 s 40 tokens 19\.5 tokens/s from 192\.168\.1\.7 "
        r"with key ann 1f2e\n",
        text,
    )


def test_a_refused_request_shows_its_code() -> None:
    line = request_line(status=429, error="model_busy", completion_tokens=None, tokens_per_second=None)

    assert " 429 model_busy 2.600 s from " in logged(lambda log: log.request(line))


def test_json_lines_hold_every_field() -> None:
    document = json.loads(logged(lambda log: log.request(request_line(error="model_busy")), "json"))

    assert (
        document.items()
        >= {
            "level": "info",
            "event": "request",
            "method": "POST",
            "path": "/v1/chat/completions",
            "status": 200,
            "error": "model_busy",
            "completion_tokens": 40,
            "tokens_per_second": 19.5,
            "peer": "192.168.1.7",
            "request_id": "1f2e",
            "key_name": "ann",
            "model": "tiny",
        }.items()
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", document["time"])


@pytest.mark.parametrize("log", ["text", "json"])
def test_lines_come_in_order_and_all_of_them_by_the_close(log: LogFormat) -> None:
    text = logged(lambda log: [log.logger.info("line %d", number) for number in range(3000)], log)

    assert re.findall(r"line (\d+)", text) == [str(number) for number in range(3000)]
    assert text.count("\n") == 3000


@pytest.mark.parametrize(
    ("level", "shown"),
    [("debug", {"d", "i", "w", "200", "500"}), ("info", {"i", "w", "200", "500"}), ("warning", {"w", "500"})],
)
def test_the_level_decides_what_is_shown(level: LogLevel, shown: set[str]) -> None:
    def act(log: logs.ServerLog) -> None:
        log.logger.debug("<d>")
        log.logger.info("<i>")
        log.logger.warning("<w>")
        log.request(request_line(path="/<200>"))
        log.request(request_line(path="/<500>", status=500))

    assert set(re.findall("<(.*?)>", logged(act, level=level))) == shown


def fail() -> None:
    raise ValueError(f"no model\nFORGED 200 {KEY}")


@pytest.mark.parametrize("log", ["text", "json"])
def test_a_fault_of_ours_has_its_traceback_without_keys(log: LogFormat) -> None:
    def act(log: logs.ServerLog) -> None:
        try:
            fail()
        except ValueError:
            log.logger.exception("request %s failed", "1f2e")

    text = logged(act, log)

    assert "request 1f2e failed" in text
    assert "ValueError: no model" in text
    assert "in fail" in text
    assert KEY not in text
    assert not any(line.startswith("FORGED") for line in text.splitlines())
    assert log == "text" or json.loads(text)["exception"].startswith("Traceback")


def test_a_message_whose_arguments_do_not_fit_is_written_anyway() -> None:
    assert "half %d done" in logged(lambda log: log.logger.info("half %d done", "x"))


# Secrets


@pytest.mark.parametrize(
    "text",
    [
        KEY,
        f"Authorization: Bearer {KEY}",
        "Authorization: Bearer word-without-prefix",
        "{'Authorization': 'Bearer word-without-prefix'}",
        "('authorization', 'Basic OktFWQ-word-without-prefix')",
        "x-api-key: word-without-prefix",
        '{"x-api-key":"word-without-prefix"}',
        "/v1/models?api_key=word-without-prefix&x=1",
        "/v1/models?key=word-without-prefix",
        "http://127.0.0.1:8080/#owner=word-without-prefix",
        "http://192.168.1.7:8080/#key=word-without-prefix",
        "access_token=word-without-prefix",
        f"key {KEY[:12]}",
        f"/v1/{KEY}/x",
    ],
)
@pytest.mark.parametrize("form", [as_text, as_json])
def test_keys_are_taken_out_of_every_line(text: str, form: Callable[[RequestLine | MessageLine], str]) -> None:
    redact = Redaction()

    for line in (request_line(path=text), MessageLine(level="info", logger="x", message=text, exception=text)):
        shown = form(redact.of(line))
        assert KEY[3:10] not in shown
        assert "word-without-prefix" not in shown
        assert "[redacted]" in shown


@pytest.mark.parametrize(
    "text",
    [
        "the key ann may chat",
        "risk-adjusted task-list",
        "no key was sent; see `pocketserver key show`",
        "100 prompt_tokens",
        "max_tokens=20",
        "unknown key: max_tokens",
    ],
)
def test_ordinary_words_stay(text: str) -> None:
    assert Redaction()(text) == text


def test_an_exact_secret_is_taken_out_however_it_is_written() -> None:
    secret = 'my "quoted" \\ secret'

    def act(log: logs.ServerLog) -> None:
        log.keep_secret("another one")
        log.logger.info("a %s b another one c", secret)

    for form in ("text", "json"):
        text = logged(act, form, secrets=[secret])  # type: ignore[arg-type]
        assert "quoted" not in text
        assert "another" not in text
        assert "a [redacted] b [redacted] c" in text


def test_the_redaction_leaves_the_fields_of_a_request_alone() -> None:
    line = request_line()

    assert Redaction().of(line) == line


# Foreign text


def test_control_characters_are_shown_not_sent() -> None:
    hostile = "/a\nb\x1b[2J\x07\u202e\x9b\udce9"

    text = logged(lambda log: (log.request(request_line(path=hostile)), log.logger.info("%s", hostile)))

    assert text.count("\n") == 2
    assert "/a\\nb\\x1b[2J\\x07\\u202e\\x9b\\udce9" in text


@given(st.text(max_size=100))
def test_any_text_is_one_line(foreign: str) -> None:
    line = request_line(path=foreign, method=foreign, peer=foreign, key_name=foreign)

    for rendered in (as_text(line), as_json(line)):
        assert len(rendered.splitlines()) == 1
        rendered.encode()
    assert json.loads(as_json(line))["path"] == escaped(foreign)


def test_long_paths_are_cut() -> None:
    assert len(logged(lambda log: log.request(request_line(path="/" + "x" * 8000)))) < 500


# Streams that are slow, full or gone


@pytest.fixture
def pipe() -> Iterator[tuple[int, io.TextIOWrapper]]:
    reader, writer = os.pipe()
    stream = os.fdopen(writer, "w")
    yield reader, stream
    for close in (stream.close, lambda: os.close(reader)):
        with contextlib.suppress(OSError):
            close()


async def test_a_reader_that_stands_still_stops_nobody(pipe: tuple[int, io.TextIOWrapper]) -> None:
    reader, stream = pipe
    with logs.configure(stream=stream) as log:
        started = time.monotonic()
        for number in range(40_000):
            log.request(request_line(request_id=str(number)))
        assert time.monotonic() - started < 20
        assert log.dropped > 0

        # Once it reads on, lines go through again, and the first of them tells how many are missing.
        reading = asyncio.create_task(asyncio.to_thread(_read_all, reader))
        await until(log._writer._items.empty)
        log.logger.info("the last line")
        dropped = log.dropped
    stream.close()
    text = await reading

    assert sum(map(int, re.findall(r"(\d+) log lines were dropped", text))) == dropped
    assert "the last line" in text
    assert text.count(" POST ") == 40_000 - dropped


def _read_all(reader: int) -> str:
    with os.fdopen(os.dup(reader), "rb") as file:
        return file.read().decode()


async def test_a_reader_that_left_is_only_counted(pipe: tuple[int, io.TextIOWrapper]) -> None:
    reader, stream = pipe
    with logs.configure(stream=stream) as log:
        os.close(reader)
        log.request(request_line())
        await until(lambda: log.dropped == 1)
        log.request(request_line())
        await until(lambda: log.dropped == 2)


def test_a_full_disk_is_only_counted() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("/dev/full is Linux'")
    with Path("/dev/full").open("w") as stream, logs.configure(stream=stream) as log:
        log.request(request_line())
        log.close()
        assert log.dropped == 1


def test_closing_does_not_wait_for_a_reader_that_stands_still(pipe: tuple[int, io.TextIOWrapper]) -> None:
    _, stream = pipe
    started = time.monotonic()
    with logs.configure(stream=stream) as log:
        for _ in range(20_000):
            log.request(request_line())
    log.close()

    assert time.monotonic() - started < 20


def test_what_is_logged_after_the_close_is_no_fault() -> None:
    stream = io.StringIO()
    with logs.configure(stream=stream) as log:
        pass

    log.logger.info("late")
    log.request(request_line())

    assert stream.getvalue() == ""


# Libraries


def test_a_client_that_left_leaves_no_traceback() -> None:
    def act(log: logs.ServerLog) -> None:
        error = ConnectionResetError("Cannot write to closing transport")
        for name in ("aiohttp.server", "aiohttp.web", "asyncio"):
            logging.getLogger(name).error("Unhandled exception", exc_info=error)
        logging.getLogger("asyncio").warning("socket.send() raised exception.")
        log.logger.error("Error handling request", exc_info=error)

    assert logged(act, level="debug") == ""


def test_faults_that_libraries_report_are_shown_while_the_log_is_open() -> None:
    report = logging.getLogger("asyncio").error

    assert "Task exception was never retrieved" in logged(lambda _log: report("Task exception was never retrieved"))
    assert not [handler for handler in logging.getLogger("asyncio").handlers if "_LineHandler" in repr(handler)]


def test_two_servers_do_not_mix_their_lines() -> None:
    first, second = io.StringIO(), io.StringIO()
    with logs.configure(stream=first) as one, logs.configure(stream=second) as two:
        one.logger.info("one")
        two.named("part").info("two")

    assert "one" in first.getvalue()
    assert "two" not in first.getvalue()
    assert "two" in second.getvalue()
    assert "one" not in second.getvalue()
