"""Whoever is killed when, and whoever else changes the same names: the store shows whole models only."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from pocketserver.models.journal import changing
from pocketserver.models.store import ModelStore
from tests.models import store_worker
from tests.models.store_worker import CHANGES, prepare, state

ROOT = Path(__file__).parents[2]

posix = pytest.mark.skipif(sys.platform == "win32", reason="kills with SIGKILL in a forked process")


async def worker(*words: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", store_worker.__name__, *words), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


@posix
@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_killed_at_any_step_is_done_whole_or_not_at_all(change: str, tmp_path: Path) -> None:
    rounds = [json.loads(line) for line in (await worker("kill", str(tmp_path), change)).splitlines()]

    before, after = rounds[0]["before"], rounds[-1]["shown"]
    assert len(rounds) > 10
    assert before != after
    assert {json.dumps(each["shown"], sort_keys=True) for each in rounds} == {
        json.dumps(each, sort_keys=True) for each in (before, after)
    }
    assert [each["left"] for each in rounds] == [[]] * len(rounds)


async def test_two_processes_and_a_reader_never_meet_half_a_change(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    prepare(folder)
    store = ModelStore(folder)
    looks = 0

    async with asyncio.TaskGroup() as tasks:
        workers = [tasks.create_task(worker("hurry", str(folder), "20")) for _ in range(2)]
        while not all(task.done() for task in workers):
            for model in await asyncio.to_thread(store.list):
                assert model.problem is None
                if model.id in {"shared", "copied"}:
                    assert model.settings.system == str(model.checked().context_length)
                    looks += 1

    assert looks > 10
    assert {name for name in state(folder) if name != "copied"} == {"tiny", "short", "c1", "big", "shared"}
    assert not [path for path in folder.iterdir() if path.name.startswith((".change", ".commit"))]


def test_a_living_change_is_left_alone_by_others(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    with changing(folder) as slow:
        slow.place("slow.gguf").write_bytes(b"x")
        with changing(folder) as quick:
            quick.place("quick.gguf").write_bytes(b"y")
            quick.commit()
        slow.commit()

    assert {path.name for path in folder.iterdir()} == {"slow.gguf", "quick.gguf", ".store.lock"}


def test_a_change_that_is_not_committed_leaves_nothing(tmp_path: Path) -> None:
    with changing(tmp_path) as change:
        change.place("a.gguf").write_bytes(b"x")

    assert [path.name for path in tmp_path.iterdir()] == [".store.lock"]
