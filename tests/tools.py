"""Programs of other projects that some tests drive: skipped without them, failed in CI, where they have to be there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_SECONDS = 240
POCKETSERVER = Path(sys.executable).with_name("pocketserver")


def needs(*programs: str) -> None:
    """Skip the calling test where one of these programs is absent."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        reason = f"{', '.join(missing)} is not installed"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)


def run(command: list[str], folder: Path, **variables: str) -> str:
    """What a program wrote to its standard output; fails the test, with all it wrote, when it ends with an error."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POCKETSERVER_")}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**kept, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"{command[0]} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def install_packages(folder: Path) -> None:
    """The npm packages of this folder's lock file, installed once for each state of it."""
    needs("node", "npm")
    installed, locked = folder / "node_modules" / ".package-lock.json", folder / "package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < locked.stat().st_mtime:
        run(["npm", "ci"], folder)
