"""What a person sees while the server runs: a calm live view on a terminal, plain lines elsewhere.

The view has the terminal's other screen, as pagers do: leaving it, however that happens, brings back what was there.
Drawing has a thread of its own, since a terminal may be slow or held with Ctrl-S; the server never waits for it.
"""

import asyncio
import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from pocketserver.chat import EngineState
from pocketserver.cli import banner
from pocketserver.cli.scene import Scene, picture
from pocketserver.server import Server
from pocketserver.settings import Settings
from pocketserver.telemetry.log_lines import Line, MessageLine, RequestLine, as_text
from pocketserver.wire.device import lane_state

_TICK_SECONDS = 0.25
_JOIN_SECONDS = 1.0
_RATE_SECONDS = 2.0
_MOST_REQUESTS = 100
_MOST_NOTES = 200
_SHOWN_NOTES = 6
_RESTORE = b"\x1b[?25h\x1b[?1049l\x1b[0m"
"""The cursor shown, the usual screen, no colours."""


class Screen(Protocol):
    """Where a running server tells its person things."""

    def say(self, sentence: str) -> None: ...

    def restore(self) -> None:
        """Give the terminal back at once; the process is about to end."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def screen_for(server: Server, warnings: Sequence[str]) -> Screen:
    """The live view where standard error is a terminal that can show it and nobody wants lines; else lines."""
    return LiveView(server, warnings) if _can_show(server.effective.settings) else PlainLines(server)


class PlainLines:
    """One line after the other, as a file or another program wants them."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._following: asyncio.Task[None] | None = None

    def say(self, sentence: str) -> None:
        banner.say(f"  {sentence}")

    def restore(self) -> None:
        """Nothing was changed."""

    async def __aenter__(self) -> Self:
        self._following = asyncio.create_task(banner.follow_loading(self._server))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._following is not None:
            self._following.cancel()


class LiveView:
    """Shows the server's state, redrawn when it differs; takes the log's lines while it is there.

    Should drawing fail, plain lines follow. On leaving, what was noted meanwhile is said again as lines.
    """

    def __init__(self, server: Server, warnings: Sequence[str]) -> None:
        self._server = server
        self._warnings = tuple(warnings)
        self._requests: deque[RequestLine] = deque(maxlen=_MOST_REQUESTS)
        self._notes: deque[str] = deque(maxlen=_MOST_NOTES)
        self._told = 0
        self._rate = _Rate()
        self._drawing: _Drawing | None = None
        self._ticking: asyncio.Task[None] | None = None

    def say(self, sentence: str) -> None:
        """A note in the view; a line while there is none."""
        if self._drawing is None:
            banner.say(f"  {sentence}")
        else:
            self._note(time.time(), sentence)

    def restore(self) -> None:
        if self._drawing is not None:
            self._drawing.restore()

    async def __aenter__(self) -> Self:
        self._on()
        self._ticking = asyncio.create_task(self._tick())
        if hasattr(signal, "SIGTSTP"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTSTP, self._pause)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if hasattr(signal, "SIGTSTP"):
            asyncio.get_running_loop().remove_signal_handler(signal.SIGTSTP)
        if self._ticking is not None:
            self._ticking.cancel()
        self._off()

    def _on(self) -> None:
        self._drawing = _Drawing()
        self._server.log.shown = self._take

    def _off(self) -> None:
        """Back to lines; notes that were only in the view are said again. Safe to call twice."""
        if self._drawing is None:
            return
        drawing, self._drawing = self._drawing, None
        self._server.log.shown = None
        drawing.close()
        with contextlib.suppress(OSError):  # the terminal itself may be gone
            for note in list(self._notes)[-min(self._told, _MOST_NOTES) :] if self._told else ():
                banner.say(f"  {note}")
            if drawing.failure is not None:
                banner.say(f"  The live view has ended ({drawing.failure}); plain lines follow.")
        self._told = 0

    def _pause(self) -> None:
        """Ctrl-Z: give the terminal back and stop, as any program; in the background there is no view afterwards."""
        self._off()
        os.kill(os.getpid(), signal.SIGSTOP)
        if _in_foreground():
            self._on()

    async def _tick(self) -> None:
        """Hand over what there is to see a few times a second; the thread draws it when it differs."""
        server = self._server
        was_loading = server.engine.status.state is EngineState.LOADING
        if not was_loading:
            self.say(banner.loaded(server.engine.status))
        while True:
            loading = server.engine.status.state is EngineState.LOADING
            if was_loading and not loading:
                self.say(banner.loaded(server.engine.status))
            was_loading = loading
            if self._drawing is not None:
                self._drawing.show(self._scene())
                if self._drawing.failure is not None:
                    self._off()
            await asyncio.sleep(_TICK_SECONDS)

    def _take(self, line: Line) -> bool:
        """A line of the log, on whichever thread it arises."""
        match line:
            case RequestLine():
                self._requests.append(line)
            case MessageLine():
                self._note(line.at, as_text(line).partition(" ")[2])
        return True

    def _note(self, at: float, sentence: str) -> None:
        self._notes.append(f"{time.strftime('%H:%M:%S', time.localtime(at))} {sentence}")
        self._told += 1

    def _scene(self) -> Scene:
        server = self._server
        state = lane_state(server.view())
        return Scene(
            title=f"{banner.title(server)}, up {_duration(time.monotonic() - server.started)}",
            facts=tuple(banner.facts(server)),
            address=banner.scannable(server),
            state=state,
            doing=self._doing(state),
            queue="" if server.door.waiting == 0 else f"{server.door.waiting} waiting",
            rates=tuple(server.activity.rates()),
            requests=tuple(self._requests),
            notes=tuple(self._notes)[-_SHOWN_NOTES:],
            warnings=self._warnings,
        )

    def _doing(self, state: str) -> str:
        status = self._server.engine.status
        match state:
            case "loading" if status.tuning_progress is not None:
                return f"measuring, once, how the model runs best {_bar(status.tuning_progress)}"
            case "loading":
                return f"loading {_bar(status.load_progress or 0.0)}"
            case "no_model":
                return f"no model: {status.problem or 'none is loaded'}"
            case "busy" | "stuck":
                return self._answering(state)
            case _:
                return self._idle()

    def _idle(self) -> str:
        last = self._server.activity.last
        if last is None or last.tokens_per_second is None:
            return "idle"
        return f"idle; the last answer had {last.completion_tokens} tokens, {last.tokens_per_second:.1f} tokens/s"

    def _answering(self, state: str) -> str:
        asking = next((one for one in self._server.activity.asking() if one.has_model), None)
        if asking is None:
            return state
        who = asking.key or asking.address or "somebody"
        rate = self._rate.of(who, asking.tokens, asking.seconds)
        if asking.tokens == 0:
            return f"{state}: {who}, reading for {asking.seconds:.0f} s"
        speed = "" if rate is None else f", {rate:.1f} tokens/s"
        return f"{state}: {who}, {asking.tokens} tokens{speed}"


class _Rate:
    """Tokens a second of the answer that is being written, over the last moments."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=64)
        self._who = ""

    def of(self, who: str, tokens: int, age_seconds: float) -> float | None:
        """The rate with this look included; None before there are two looks at the same answer."""
        samples, now = self._samples, time.monotonic()
        if who != self._who or (samples and (tokens < samples[-1][1] or age_seconds < now - samples[-1][0])):
            samples.clear()
        self._who = who
        if tokens:
            samples.append((now, tokens))
        while len(samples) > 2 and now - samples[0][0] > _RATE_SECONDS:
            samples.popleft()
        if len(samples) < 2 or samples[-1][0] <= samples[0][0]:
            return None
        return (samples[-1][1] - samples[0][1]) / (samples[-1][0] - samples[0][0])


class _Drawing:
    """The thread that draws, and the terminal's state while it does. `failure` is why it ended by itself."""

    def __init__(self) -> None:
        self.failure: str | None = None
        self._scene: Scene | None = None
        self._wanted = threading.Event()
        self._ended = threading.Event()
        self._keyboard = contextlib.ExitStack()
        self._keyboard.enter_context(_quiet_keyboard())
        self._thread = threading.Thread(target=self._run, name="live view", daemon=True)
        self._thread.start()

    def show(self, scene: Scene) -> None:
        """The newest scene counts; one that was not drawn yet is passed over."""
        self._scene = scene
        self._wanted.set()

    def close(self) -> None:
        """Give the terminal back, also when it takes no output any more."""
        self._ended.set()
        self._wanted.set()
        self._thread.join(_JOIN_SECONDS)
        self.restore()

    def restore(self) -> None:
        """Undo everything at once, without waiting for the thread; harmless when that has done it already."""
        with contextlib.suppress(OSError, ValueError):
            descriptor = sys.stderr.fileno()
            if self._thread.is_alive() and select.select([], [descriptor], [], 0.2)[1]:
                os.write(descriptor, _RESTORE)
        self._keyboard.close()

    def _run(self) -> None:
        try:
            self._draw()
        except Exception as error:  # noqa: BLE001 - the top of this thread: a view that fails must not end a server
            self.failure = str(error) or type(error).__name__

    def _draw(self) -> None:
        console = Console(file=sys.stderr, highlight=False)
        code = _Code()
        drawn: object = None
        with Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        ) as live:
            while self._wanted.wait() and not self._ended.is_set():
                self._wanted.clear()
                scene, size = self._scene, console.size
                if scene is None or (scene, size) == drawn:
                    continue
                lines = picture(scene, code.of(scene.address), size.width, size.height)
                live.update(Text("\n", no_wrap=True, overflow="crop").join(lines), refresh=True)
                drawn = (scene, size)


class _Code:
    """The QR code of an address, made when the address changes."""

    def __init__(self) -> None:
        self._address = ""
        self._lines: tuple[Text, ...] = ()

    def of(self, address: str) -> tuple[Text, ...]:
        if address != self._address:
            self._address = address
            self._lines = tuple(map(Text.from_ansi, banner.qr_code(address).splitlines()))
        return self._lines


def _can_show(settings: Settings) -> bool:
    if settings.plain or settings.log != "text" or settings.exit_on_stdin_close or not sys.stderr.isatty():
        return False
    if settings.ready_json == "-" and sys.stdout.isatty():
        return False
    unable = os.environ.get("TERM", "") in {"dumb", "unknown"}
    return not unable and "utf" in (sys.stderr.encoding or "").lower() and _in_foreground()


def _in_foreground() -> bool:
    """Whether the terminal is ours: a job in the background must not draw over its shell."""
    if not hasattr(os, "tcgetpgrp"):
        return True
    try:
        return os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def _quiet_keyboard() -> Iterator[None]:
    """Keys are not echoed into the view, and not left over for the shell; Ctrl-C and Ctrl-\\ work as ever."""
    if sys.platform == "win32":
        yield
        return
    import termios

    try:
        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (termios.error, OSError, ValueError):  # standard input is no terminal
        yield
        return
    quiet = [*before]
    quiet[3] = before[3] & ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(descriptor, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):
            termios.tcflush(descriptor, termios.TCIFLUSH)
            termios.tcsetattr(descriptor, termios.TCSANOW, before)


def _bar(done: float) -> str:
    filled = round(min(max(done, 0.0), 1.0) * 10)
    return f"{'█' * filled}{'░' * (10 - filled)} {done:.0%}"


def _duration(seconds: float) -> str:
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    return (
        f"{minutes // 60} h {minutes % 60} min"
        if minutes < 60 * 24
        else f"{minutes // 60 // 24} d {minutes // 60 % 24} h"
    )
