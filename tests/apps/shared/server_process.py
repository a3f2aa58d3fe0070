"""A server as a child process, for tests that run in an application's own environment: nothing but the standard library.

`POCKETSERVER_TEST_PYTHON` names the interpreter that has pocketserver.
"""

import json
import os
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_STOP_SECONDS = 30


@dataclass(frozen=True)
class ServerProcess:
    """A running server, as its ready line describes it, and the words of its control listener."""

    ready: Mapping[str, Any]

    @property
    def base_url(self) -> str:
        return str(self.ready["base_url"])

    @property
    def origin(self) -> str:
        return self.base_url.removesuffix("/v1")

    @property
    def api_key(self) -> str:
        return str(self.ready["api_key"])

    @property
    def model(self) -> str:
        return str(self.ready["model"])

    def reply(
        self,
        text: str | None = None,
        *,
        calls: Sequence[tuple[str, Mapping[str, Any]]] = (),
        reasoning: str | None = None,
        times: int | None = None,
        **match: Any,
    ) -> None:
        """Answer what matches with this."""
        said = {
            "text": text,
            "tool_calls": [{"name": name, "arguments": arguments} for name, arguments in calls] or None,
            "reasoning": reasoning,
        }
        reply = {key: value for key, value in said.items() if value is not None}
        self.control("POST", "/rules", {"reply": reply, "match": match, "times": times})

    def fail_next(self, fault: str, **words: Any) -> None:
        """Let the next request meet a fault."""
        self.control("POST", "/faults", {"fault": fault, **words})

    def reset(self) -> None:
        self.control("POST", "/reset")

    def requests(self) -> list[dict[str, Any]]:
        """What clients have sent, oldest first."""
        found: list[dict[str, Any]] = self.control("GET", "/requests")["requests"]
        return found

    def control(self, method: str, route: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            self.ready["control_url"] + route,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.ready['control_token']}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as response:
            return json.load(response)


@contextmanager
def serving(*words: str) -> Iterator[ServerProcess]:
    """`pocketserver WORDS…` in profile `hub` on a free loopback port, until the block is left."""
    with tempfile.TemporaryDirectory() as home:
        command = [os.environ["POCKETSERVER_TEST_PYTHON"], "-m", "pocketserver.cli.main", *words]
        flags = ["--profile", "hub", "--host", "127.0.0.1", "--port", "0", "--no-mdns", "--home", home]
        ready = ["--ready-json", "-", "--exit-on-stdin-close"]
        with subprocess.Popen([*command, *flags, *ready], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdin
            assert child.stdout
            line = child.stdout.readline()
            assert line, f"the server ended with {child.wait()} before it was ready"
            try:
                yield ServerProcess(json.loads(line))
            finally:
                child.stdin.close()
                child.wait(_STOP_SECONDS)


def simulating(*flags: str) -> Any:
    """A simulator without delays."""
    return serving("sim", "serve", "--speed", "max", *flags)
