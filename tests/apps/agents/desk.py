"""An agent at work: an empty home, an empty folder, one server, and one conversation."""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from server_process import ServerProcess

PACKAGES = Path(os.environ["POCKETSERVER_TEST_PACKAGES"])
LIMIT_SECONDS = 120


@dataclass
class Desk:
    server: ServerProcess
    home: Path
    work: Path
    seen: int = field(default=0)

    def run(self, command: list[str], **variables: str) -> str:
        """What the agent wrote to its standard output; it must end well."""
        done = self.try_to_run(command, **variables)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def try_to_run(self, command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.work,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home), **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )

    def asked(self, path: str) -> list[Mapping[str, Any]]:
        """The requests to this path since the last time."""
        requests = self.server.requests()
        new, self.seen = requests[self.seen :], len(requests)
        return [request for request in new if request["path"].partition("?")[0] == path]


def as_text(request: Mapping[str, Any]) -> str:
    """Everything that an agent told the model in a request."""
    return json.dumps(request["json"], ensure_ascii=False)
