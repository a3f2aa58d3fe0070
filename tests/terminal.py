"""A program on a real pseudo-terminal, and what a person would see there (a terminal emulator reads its output)."""

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import pyte

LIMIT_SECONDS = 60.0
_TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)
"""Makes the terminal that of the new session, as a login does; without it Ctrl-C reaches nobody."""


class Terminal:
    """`with Terminal([...], columns=80, lines=24) as terminal`: the program runs until the block is left."""

    def __init__(
        self, argv: Sequence[str], *, columns: int = 80, lines: int = 24, environment: dict[str, str] | None = None
    ) -> None:
        self.raw = b""
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self._lock = threading.Lock()
        self._normal: list[str] | None = None
        self.master, slave = pty.openpty()
        self._set_size(columns, lines)
        self.flags_before = termios.tcgetattr(slave)[3]
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *argv],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm-256color", **(environment or {})},
            start_new_session=True,
        )
        self.slave = slave
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._ending = threading.Event()
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._ending.set()
        self._reader.join()
        os.close(self.slave)
        os.close(self.master)

    @property
    def shown(self) -> str:
        """The screen as it looks now, without blank ends of lines."""
        with self._lock:
            return "\n".join(line.rstrip() for line in self._screen.display)

    @property
    def colours(self) -> set[str]:
        with self._lock:
            rows = self._screen.buffer.values()
            return {cell.fg for row in rows for cell in row.values()} - {"default"}

    @property
    def cursor_hidden(self) -> bool:
        with self._lock:
            return bool(self._screen.cursor.hidden)

    @property
    def on_other_screen(self) -> bool:
        with self._lock:
            return self.raw.rfind(b"\x1b[?1049h") > self.raw.rfind(b"\x1b[?1049l")

    @property
    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self.slave)[3] & termios.ECHO)

    def text(self) -> str:
        """Everything that was ever written, without control sequences."""
        import re

        with self._lock:
            return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.raw.decode(errors="replace")).replace("\r", "")

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def resize(self, columns: int, lines: int) -> None:
        with self._lock:
            self._screen.resize(lines, columns)
        self._set_size(columns, lines)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGWINCH)

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain for {what}; the screen shows:\n{self.shown}"
            time.sleep(0.02)

    def until_shown(self, *words: str) -> str:
        self.until(lambda: all(word in self.shown for word in words), f"{words}")
        return self.shown

    def ended(self) -> int:
        """Wait for the program's end and for all of its output."""
        code = self.process.wait(LIMIT_SECONDS)
        self._ending.set()
        self._reader.join(LIMIT_SECONDS)
        return code

    def _set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def _read(self) -> None:
        while True:
            readable = select.select([self.master], [], [], 0.05)[0]
            if not readable:
                if self._ending.is_set():
                    return
                continue
            try:
                data = os.read(self.master, 65536)
            except OSError:
                return
            with self._lock:
                self.raw += data
                self._stream.feed(data)


def pocketserver(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pocketserver.cli.main", *arguments]
