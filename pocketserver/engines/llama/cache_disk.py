"""The disk tier of the prefix cache: an index of one version's states, and a thread that writes new ones."""

import contextlib
import queue
import sys
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pocketserver.engines.llama import cache_files
from pocketserver.engines.llama.borrowed_memory import borrowed
from pocketserver.engines.llama.cache_files import CacheFileFault, Header, StateFile

Tokens = npt.NDArray[np.int32]
State = npt.NDArray[np.uint8]

SLACK_TOKENS = 32
"""States that differ by no more than this at their end count as the same: reading so few tokens anew costs little."""

_MOST_WAITING = 2
_CLOCK_TICK_NANOSECONDS = 50_000_000
_LONGEST_PAUSE_SECONDS = 1.0  # for each piece: under endless load a state is written slowly, but written


@dataclass(frozen=True, slots=True, eq=False)
class DiskState:
    """A state on disk."""

    tokens: Tokens
    file: StateFile


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    tokens: Tokens
    state: State
    replaces: Sequence[Path]


def shared_length(left: Tokens, right: Tokens) -> int:
    """How many tokens two sequences begin with in common."""
    length = min(len(left), len(right))
    different = left[:length] != right[:length]
    return int(np.argmax(different)) if different.any() else length


def covers(stored: Tokens, live: Tokens) -> bool:
    """True when restoring `stored` gives all of `live`, but for a few tokens at its end."""
    return shared_length(stored, live) >= len(live) - SLACK_TOKENS


def stored(tokens: Tokens) -> bytes:
    """Tokens as a file holds them."""
    return tokens.astype("<i4").tobytes()


class DiskCache:
    """States of one version. All methods belong to one thread, which never waits for the disk but in `read`.

    Other servers may add and remove files meanwhile. Nothing here raises for a disk that is full or gone: the cache
    then holds less.
    """

    def __init__(self, root: Path, version_parts: Mapping[str, object], model: str, budget_bytes: int) -> None:
        """Read the index, and remove what is damaged or foreign. Blocks for as long as that takes."""
        self.budget_bytes = budget_bytes
        self._root = root
        self._version = cache_files.version_of(version_parts)
        self._folder = root / self._version
        self._model = model
        self._states: dict[str, DiskState] = {}
        self._changed = -1
        self._quiet = threading.Event()
        self._quiet.set()
        self._waiting: queue.Queue[_Waiting] = queue.Queue()
        self._writing: _Waiting | None = None
        self._complained = False
        threading.Thread(target=self._write_all, name="cache", daemon=True).start()
        self._refresh()

    def states(self) -> Sequence[DiskState]:
        """What is there at this moment."""
        self._refresh()
        return list(self._states.values())

    def glance(self) -> Sequence[Tokens]:
        """What was there when it was last looked at; the one method for any thread."""
        return [state.tokens for state in [*self._states.values()]]

    def covers(self, live: Tokens) -> bool:
        """True when nothing is gained by writing `live`: it is on disk, or on its way there."""
        return any(covers(tokens, live) for tokens in self.kept())

    def kept(self) -> list[Tokens]:
        """The tokens of every state that is on disk or on its way there."""
        return [tokens for _, tokens in self._kept()]

    def read(self, state: DiskState) -> State | None:
        """The state's bytes; None when the file is damaged or gone, and then it is forgotten."""
        try:
            file = cache_files.read_header(state.file.path, self._version)  # another server may have written it anew
            found = borrowed(file.header.state_bytes)
            cache_files.read_state(file, found.data)
        except (CacheFileFault, OSError):  # the latter for want of memory
            self.forget(state)
            return None
        cache_files.touch(state.file.path)
        return found

    def forget(self, state: DiskState) -> None:
        """Remove a state that cannot be used."""
        cache_files.remove(state.file.path)
        self._states.pop(state.file.path.name, None)

    def write(self, tokens: Tokens, state: State, *, replacing: bool) -> None:
        """Write soon, `replacing` states that this one covers. When too many wait already, the oldest is given up."""
        if len(state) > self.budget_bytes:
            return
        replaces = [path for path, other in self._kept() if replacing and covers(tokens, other)]
        while self._waiting.qsize() >= _MOST_WAITING:
            with contextlib.suppress(queue.Empty):
                self._waiting.get_nowait()
                self._waiting.task_done()
        self._waiting.put(_Waiting(tokens, state, replaces))

    def pause(self) -> None:
        """An answer begins: it has the machine for itself."""
        self._quiet.clear()

    def resume(self) -> None:
        self._quiet.set()

    def flush(self, seconds: float) -> None:
        """Wait until everything is written, no longer than so many seconds."""
        self._quiet.set()
        deadline = time.monotonic() + seconds
        while self._waiting.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.005)

    def _kept(self) -> list[tuple[Path, Tokens]]:
        written = [(state.file.path, state.tokens) for state in self.states()]
        return written + [
            (cache_files.path_of(self._folder, stored(waiting.tokens)), waiting.tokens)
            for waiting in self._on_their_way()
        ]

    def _on_their_way(self) -> list[_Waiting]:
        with self._waiting.mutex:
            waiting = list(self._waiting.queue)
        return waiting if self._writing is None else [*waiting, self._writing]

    def _refresh(self) -> None:
        """Follow what this and other servers, or `pocketserver cache clear`, have changed in the folder."""
        try:
            changed = self._folder.stat().st_mtime_ns
        except OSError:
            changed, self._states = -1, {}
        if changed == self._changed:
            return
        fresh = time.time_ns() - changed < _CLOCK_TICK_NANOSECONDS  # the next change might bear the same time
        self._changed = -1 if fresh else changed
        present = {found.path.name: found.path for found in cache_files.states(self._folder)}
        self._states = {name: state for name, state in self._states.items() if name in present}
        for name, path in present.items():
            if name not in self._states:
                self._add(path)

    def _add(self, path: Path) -> None:
        try:
            found = cache_files.read_header(path, self._version)
        except CacheFileFault:
            cache_files.remove(path)
            return
        self._states[path.name] = DiskState(np.frombuffer(found.tokens, "<i4").astype(np.int32), found)

    def _write_all(self) -> None:
        """The writing thread: what it shares with the other one is the queue and the folder."""
        cache_files.evict(self._root, self.budget_bytes)
        while True:
            self._writing = self._waiting.get()
            try:
                self._write_one(self._writing)
            except OSError as error:
                self._complain(error)
            finally:
                self._writing = None
                self._waiting.task_done()

    def _write_one(self, waiting: _Waiting) -> None:
        tokens, state = stored(waiting.tokens), waiting.state.data
        header = Header(
            version=self._version,
            model=self._model,
            token_count=len(waiting.tokens),
            state_bytes=len(state),
            tokens_sum=zlib.crc32(tokens),
            state_sum=zlib.crc32(state),
        )
        cache_files.evict(self._root, self.budget_bytes - len(state))
        written = cache_files.write_state(self._folder, header, tokens, state, before_piece=self._give_way)
        for path in waiting.replaces:
            if path != written:
                cache_files.remove(path)

    def _give_way(self) -> None:
        self._quiet.wait(_LONGEST_PAUSE_SECONDS)

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            print(f"The prefix cache cannot be written: {error}", file=sys.stderr, flush=True)
        self._complained = True
