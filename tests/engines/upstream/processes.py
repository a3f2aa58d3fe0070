"""Other servers as processes of their own, for tests that put ours in front of them or kill them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Process:
    """A server that has said where it listens."""

    ready: dict[str, Any]
    child: "subprocess.Popen[bytes]"

    @property
    def base_url(self) -> str:
        return str(self.ready["base_url"])

    def kill(self) -> None:
        """At once and without a word, as a power cut does."""
        self.child.kill()
        self.child.wait()


@contextmanager
def process(*words: str, **environment: str) -> Iterator[Process]:
    """Run until the block is left: the program prints one JSON line when it serves, and ends with its input."""
    with subprocess.Popen(
        [sys.executable, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env={**os.environ, **environment},
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            line = child.stdout.readline()
            assert line, f"the server ended with {child.wait()} before it was ready"
            yield Process(json.loads(line), child)
        finally:
            child.stdin.close()
            if child.poll() is None:
                child.wait(30)


def simulator(home: Path, *flags: str) -> Any:
    """`pocketserver sim serve` without a key, in the profile that has every route."""
    words = ["-m", "pocketserver.cli.main", "sim", "serve", "--profile", "hub", "--host", "127.0.0.1", "--port", "0"]
    words += ["--no-mdns", "--auth", "off", "--home", str(home), "--ready-json", "-", "--exit-on-stdin-close"]
    return process(*words, *flags)


def llama_cpp_server(model: Path, *flags: str) -> Any:
    """llama.cpp's own server out of the `xllamacpp` package."""
    return process("tools/bench_peer.py", str(model), "--context", "1024", "--threads", "2", *flags)
