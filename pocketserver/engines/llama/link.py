"""One model process as the server sees it: started, written to, read from, and surely ended."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections import deque

import psutil

from pocketserver.engines.llama.frames import (
    LENGTH_BYTES,
    FrameError,
    FromWorker,
    ToWorker,
    body_length,
    decode_from_worker,
    encode,
)

logger = logging.getLogger(__name__)

_LINE_LIMIT = 64 * 1024
_KEPT_LINES = 20
_WAIT_SECONDS = 10.0


class WorkerLink:
    """Open it with `start`; `receive` ends when the process does. `kill` may be called at any time and twice."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._last_words: deque[str] = deque(maxlen=_KEPT_LINES)
        self._listening = asyncio.create_task(self._read_stderr(), name="llama-worker-stderr")

    @classmethod
    async def start(cls) -> "WorkerLink":
        """Start a worker in a session of its own, so that Ctrl-C in the terminal reaches the server alone."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # a file such as random.py in the working directory must not become a module of the worker
            "-m",
            "pocketserver.engines.llama.worker",
            str(os.getpid()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=_LINE_LIMIT,
            env=_without_our_settings(),
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def last_words(self) -> str:
        """The last lines of the worker's stderr, for the log."""
        return "\n".join(self._last_words)

    def processor_seconds(self) -> float:
        """Processor time of all threads of the process so far; 0 when it is gone."""
        try:
            times = psutil.Process(self.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)

    def send(self, frame: ToWorker) -> None:
        """Write without waiting: frames are small against the pipe's buffer, and there is one request at a time.

        Raises FrameError for what cannot be carried; writing to a dead worker is no error, its end shows in `receive`.
        """
        data = encode(frame)
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(data)

    async def receive(self) -> FromWorker | None:
        """The next frame; None when the worker is gone. A broken frame ends the worker."""
        assert self._process.stdout is not None
        reader = self._process.stdout
        try:
            head = await reader.readexactly(LENGTH_BYTES)
            return decode_from_worker(await reader.readexactly(body_length(head)))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        except FrameError as error:
            logger.warning("The model process sent a broken frame (%s) and is replaced.", error)
            self.kill()
            return None

    def kill(self) -> None:
        """End the process at once, also a stopped one."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> int:
        """Kill and reap; how it ended (negative: by which signal). Safe to call twice."""
        self.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()
        code = await asyncio.wait_for(self._process.wait(), _WAIT_SECONDS)
        await self._listening
        return code

    async def ended(self) -> int:
        """Wait for a process whose pipe has ended; how it ended."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _WAIT_SECONDS)
        return await self.close()

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        with contextlib.suppress(ConnectionError):
            while chunk := await self._process.stderr.read(4096):
                for line in chunk.decode("utf-8", errors="replace").splitlines():
                    self._last_words.append(line[:500])
                    logger.debug("model process: %s", line[:500])


def how_it_ended(code: int) -> str:
    """A return code in words."""
    if code >= 0:
        return f"ended with code {code}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


def _without_our_settings() -> dict[str, str]:
    """The environment without our variables: a key among them is nothing that native code should hold."""
    return {name: value for name, value in os.environ.items() if not name.startswith("POCKETSERVER_")}
