"""`pocketserver cache`: what is kept, for a person and for a program, and that it can be cleared while in use."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pocketserver.engines.llama.cache_disk import DiskCache
from pocketserver.engines.llama.cache_files import FOLDER


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = "import sys; from pocketserver.cli.main import main; sys.argv[0] = 'pocketserver'; main()"
    return subprocess.run(
        [sys.executable, "-c", program, "cache", *arguments],
        env={**os.environ, "POCKETSERVER_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    """The cache of a running server, with two conversations in it."""
    kept = DiskCache(tmp_path / "llama" / FOLDER, {"model": "a"}, "tiny-model", 10**9)
    for first in (0, 5000):
        kept.write(np.arange(first, first + 100, dtype=np.int32), np.zeros(3 * 1024 * 1024, np.uint8), replacing=True)
    kept.flush(30)
    return kept


def test_nothing_kept_is_said_so(tmp_path: Path) -> None:
    assert "No conversations" in run(tmp_path, "show").stdout
    assert json.loads(run(tmp_path, "show", "--json").stdout) == []
    assert "0 conversations removed" in run(tmp_path, "clear").stderr


def test_show_names_model_number_and_size(tmp_path: Path, cache: DiskCache) -> None:
    (row,) = json.loads(run(tmp_path, "show", "--json").stdout)
    assert (row["model"], row["conversations"]) == ("tiny-model", len(cache.states()))
    assert row["size_bytes"] > 6 * 1024 * 1024
    shown = run(tmp_path, "show").stdout.splitlines()
    assert shown[0].split()[:3] == ["MODEL", "CONVERSATIONS", "MIB"]
    assert shown[1].split()[:3] == ["tiny-model", "2", "6.0"]


def test_clear_removes_all_and_a_running_server_goes_on(tmp_path: Path, cache: DiskCache) -> None:
    before = list(cache.states())
    cleared = run(tmp_path, "clear")
    assert cleared.stdout == ""
    assert "2 conversations removed, 6.0 MiB" in cleared.stderr
    assert cache.read(before[0]) is None
    assert list(cache.states()) == []
