"""An application's own environment: its packages, installed once for each state of what pins them.

A package that cannot be fetched fails the test in CI; elsewhere the test is skipped, with the reason.
"""

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.tools import needs

FOLDER = Path(__file__).parent
_INSTALL_SECONDS = 420


def python_of(folder: Path) -> Path:
    """The interpreter of this folder's environment, with what `requirements.txt` names as `constraints.txt` pins it."""
    environment = folder / ".venv"
    python = environment / "bin" / "python"
    pinned = [folder / "requirements.txt", folder / "constraints.txt"]
    stamp = environment / ".installed"
    if not _is_current(stamp, pinned):
        venv.create(environment, with_pip=True, clear=True)
        wanted = ["-r", "requirements.txt", "-c", "constraints.txt"]
        _fetch([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted], folder)
        stamp.write_text(_state_of(pinned))
    return python


def packages_of(folder: Path) -> Path:
    """The `node_modules` of this folder's lock file. No install script runs: what packages bring is taken as it is."""
    needs("node", "npm")
    modules = folder / "node_modules"
    pinned = [folder / "package.json", folder / "package-lock.json"]
    stamp = modules / ".installed"
    if not _is_current(stamp, pinned):
        _fetch(["npm", "ci", "--ignore-scripts", "--no-fund", "--no-audit"], folder)
        stamp.write_text(_state_of(pinned))
    return modules


def _fetch(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_INSTALL_SECONDS,
            check=False,
        )
        said = "" if done.returncode == 0 else f"{done.stdout}\n{done.stderr}".strip()
    except subprocess.TimeoutExpired:
        said = f"nothing after {_INSTALL_SECONDS} s"
    if said:
        reason = f"the packages of {folder.name} cannot be fetched: {said[-500:]}"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)


def _is_current(stamp: Path, pinned: list[Path]) -> bool:
    return stamp.exists() and stamp.read_text() == _state_of(pinned)


def _state_of(pinned: list[Path]) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in pinned) + sys.version.encode()).hexdigest()
