"""Runs a suite in an application's environment, without any network but loopback, and keeps the count of its tests."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.tools import needs

COUNTS = pytest.StashKey[dict[str, Counter[str]]]()
"""What each application's own runner counted."""

_LIMIT_SECONDS = 240
_KEPT = ("PATH", "LANG", "CI", "LD_LIBRARY_PATH", "OPENBLAS_CORETYPE")
_OFFLINE = 'ip link set lo up && exec "$@"'
_PYTEST = re.compile(r"(\d+) (passed|failed|skipped|xfailed|xpassed|errors?)\b")
_NODE = re.compile(r"^# pass (\d+)$", re.MULTILINE)


def run_pytest(config: pytest.Config, name: str, python: Path, folder: Path, *words: str, **variables: str) -> None:
    """Run pytest with these words in this folder; fails with all it wrote."""
    command = [str(python), "-m", "pytest", "-c", "pytest.ini", *words]
    said = _run_offline(command, folder, variables)
    last = next(line for line in reversed(said.splitlines()) if " in " in line)
    _count(config, name, {word: int(number) for number, word in _PYTEST.findall(last)})


def run_node(config: pytest.Config, name: str, folder: Path, **variables: str) -> None:
    """Run node's test runner in this folder."""
    said = _run_offline(["node", "--test", "--test-reporter=tap"], folder, variables)
    passed = _NODE.search(said)
    _count(config, name, {"passed": int(passed[1]) if passed else 0})


def _run_offline(command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> str:
    """What a command wrote, run in a network namespace of its own with an empty home."""
    needs("unshare", "ip")
    own = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--user", "--map-root-user"]
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [*own, "sh", "-c", _OFFLINE, "sh", *command],
            cwd=folder,
            env={**kept, "HOME": home, "POCKETSERVER_TEST_PYTHON": sys.executable, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_SECONDS,
            check=False,
        )
    if done.returncode:
        pytest.fail(f"{shutil.which(command[0])} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def _count(config: pytest.Config, name: str, counted: Mapping[str, int]) -> None:
    assert counted.get("passed"), f"{name} ran no test"
    config.stash[COUNTS].setdefault(name, Counter()).update(counted)
