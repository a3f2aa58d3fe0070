"""The log of one server: its loggers, one line a request, and the thread that writes them to standard error."""

import logging
import sys
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Literal, TextIO

from pocketserver.telemetry.log_lines import FORMATS, Line, MessageLine, Redaction, RequestLine
from pocketserver.telemetry.log_writer import LineWriter

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning"]

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}
_ADOPTED = ("aiohttp", "asyncio")
"""Loggers of the libraries that speak about connections and tasks; they log through Python's global tree."""
_LOST_CONNECTION = "socket.send() raised exception."
"""asyncio's words, when somebody goes on writing to a client that has left."""


class ServerLog:
    """An owned log: `close` ends it. `logger` belongs to this server alone, it is in no global tree.

    No method waits for the stream; `dropped` counts the lines that could not be written.
    """

    def __init__(self, stream: TextIO, *, log: LogFormat, level: LogLevel, secrets: Collection[str] = ()) -> None:
        self._redaction = Redaction(secrets)
        self._format = FORMATS[log]
        self._level = _LEVELS[level]
        self._writer: LineWriter[Line] = LineWriter(stream, self._written, _dropped_line)
        self.shown: Callable[[Line], bool] | None = None
        """Given each line, without secrets and on whichever thread it arises; those it takes (true) are not written."""
        self._handler = _LineHandler(self._put)
        self._handler.setLevel(self._level)
        self._handler.addFilter(_is_worth_a_line)
        self.logger = self.named("pocketserver")
        for name in _ADOPTED:
            logging.getLogger(name).addHandler(self._handler)

    @property
    def dropped(self) -> int:
        return self._writer.dropped

    def named(self, name: str) -> logging.Logger:
        """A logger of this server for one of its parts."""
        logger = logging.Logger(name, self._level)  # noqa: LOG001 - getLogger's tree is one for the whole process
        logger.addHandler(self._handler)
        return logger

    def request(self, line: RequestLine) -> None:
        """Log a finished request. At level `warning` only faults of the server (5xx) are shown."""
        if self._level <= logging.INFO or line.status >= 500:
            self._put(line)

    def keep_secret(self, secret: str) -> None:
        """Never write this text, whatever it is part of. Keys that start with `sk-` are taken out anyway."""
        self._redaction.add(secret)

    def close(self) -> None:
        """Write what is waiting (for a second at most) and let go of the libraries' loggers; safe to call twice."""
        for name in _ADOPTED:
            logging.getLogger(name).removeHandler(self._handler)
        self._writer.close()

    def _put(self, line: Line) -> None:
        if self.shown is None or not self.shown(self._redaction.of(line)):
            self._writer.put(line)

    def _written(self, line: Line) -> str:
        return self._format(self._redaction.of(line))


@contextmanager
def configure(
    log: LogFormat = "text", *, level: LogLevel = "info", stream: TextIO | None = None, secrets: Collection[str] = ()
) -> Iterator[ServerLog]:
    """The log of a server for as long as the block lasts; `stream` is standard error unless given."""
    server_log = ServerLog(stream or sys.stderr, log=log, level=level, secrets=secrets)
    try:
        yield server_log
    finally:
        server_log.close()


class _LineHandler(logging.Handler):
    """Turns records into lines. Messages are put together here, since their arguments may change later."""

    def __init__(self, put: Callable[[Line], None]) -> None:
        super().__init__()
        self._put = put

    def emit(self, record: logging.LogRecord) -> None:
        self._put(
            MessageLine(
                level=record.levelname.lower(),
                logger=record.name,
                message=_message(record),
                exception=_traceback(record),
                at=record.created,
            )
        )


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - arguments that do not fit must not fail the part that logs
        return str(record.msg)


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Whether it is more than a client that left, which is ordinary on Wi-Fi and has its own request line."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, ConnectionError) and record.msg != _LOST_CONNECTION


def _traceback(record: logging.LogRecord) -> str | None:
    if not record.exc_info or record.exc_info[1] is None:
        return None
    return "".join(traceback.format_exception(record.exc_info[1])).rstrip()


def _dropped_line(number: int) -> Line:
    message = f"{number} log lines were dropped, because they could not be written."
    return MessageLine(level="warning", logger="pocketserver", message=message)
