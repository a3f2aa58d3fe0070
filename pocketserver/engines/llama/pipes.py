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


_SPIN_ROUNDS = "5000"


def share_the_processor() -> None:
    """Let decoding threads spin for microseconds only when they wait for each other. Before the library is loaded.

    GNU's OpenMP spins for milliseconds: when anything else runs, the thread that all wait for has no processor then.
    Measured on two cores at 512 tokens deep, in turn: on a quiet machine 40 tokens/s without spinning, 84 with 1,000
    rounds, 88 with 5,000 and with 20,000, 85 with the default; at a load of 5 to 7 the default fell to 2.
    What the user has set stands. numpy multiplies no matrices here, so its threads would only wait. Those of BLAS are
    told to sleep at once between two products, where OpenMP's threads need the processor: 1.5 ms a prompt token
    instead of 2.4.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_ROUNDS)


def die_with_parent(parent_pid: int) -> None:
    """Ask Linux to kill this process when its parent dies; other systems rely on the end of the input pipe alone."""
    if sys.platform != "linux":
        return
    pr_set_pdeathsig, sigkill = 1, 9
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, sigkill, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before the line above
        os._exit(1)
