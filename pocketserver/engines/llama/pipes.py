"""The model process's own ends of the pipes, taken before any native library can print into them."""

import ctypes
import os
import sys
import threading
from typing import BinaryIO

from pocketserver.engines.llama.frames import FromWorker, ToWorker, encode, read_to_worker


class Pipes:
    """Frames from the server and to it. `send` may be called from any thread."""

    def __init__(self, incoming: BinaryIO, outgoing: BinaryIO) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._lock = threading.Lock()

    def receive(self) -> ToWorker | None:
        """The next frame; None when the server has closed the pipe or is gone."""
        return read_to_worker(self._incoming)

    def send(self, frame: FromWorker) -> None:
        data = encode(frame)
        with self._lock:
            self._outgoing.write(data)
            self._outgoing.flush()


def take_pipes() -> Pipes:
    """Move stdin and stdout away; what libraries print goes to stderr, what they read is empty."""
    incoming, outgoing = os.dup(0), os.dup(1)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.dup2(2, 1)
    os.close(empty)
    return Pipes(os.fdopen(incoming, "rb"), os.fdopen(outgoing, "wb"))


def share_the_processor() -> None:
    """Let decoding threads sleep when they wait for each other. Must run before the library is loaded.

    OpenMP threads spin by default, GNU's for milliseconds. When anything else runs on the machine, the thread that all
    wait for has no processor then. Medians measured with two cores and a load of 5 to 7, in turn: 20-29 tokens/s
    asleep, 8-19 with 1,000 rounds of spinning, 2-30 with the default; and the best single tokens came asleep, too.
    What the user has set stands.
    """
    if not any(name in os.environ for name in ("GOMP_SPINCOUNT", "KMP_BLOCKTIME")):
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def die_with_parent(parent_pid: int) -> None:
    """Ask Linux to kill this process when its parent dies; other systems rely on the end of the input pipe alone."""
    if sys.platform != "linux":
        return
    pr_set_pdeathsig, sigkill = 1, 9
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, sigkill, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before the line above
        os._exit(1)
