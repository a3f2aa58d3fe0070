"""Files of the prefix cache: whole or not there, ignored and removed when damaged or foreign, bounded, shared."""

import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pocketserver.engines.llama import cache_files
from pocketserver.engines.llama.cache_disk import DiskCache, State, Tokens
from pocketserver.engines.llama.cache_files import CacheFileFault, Header

PARTS = {"model": "one", "kv_type": "f16"}
MIB = 1024 * 1024


def tokens(*, first: int, count: int = 100) -> Tokens:
    return np.arange(first, first + count, dtype=np.int32)


def state(filled: int, size: int = 1000) -> State:
    return np.full(size, filled, np.uint8)


def disk(root: Path, budget: int = 100 * MIB, **parts: str) -> DiskCache:
    return DiskCache(root, PARTS | parts, "tiny", budget)


def stored(cache: DiskCache, *firsts: int, size: int = 1000) -> DiskCache:
    for first in firsts:
        cache.write(tokens(first=first), state(first % 251, size), replacing=True)
        cache.flush(30)
    return cache


def firsts(cache: DiskCache) -> set[int]:
    return {int(found.tokens[0]) for found in cache.states()}


def only_file(root: Path) -> Path:
    (path,) = [path for path in root.rglob("*") if path.is_file()]
    return path


def test_a_state_is_read_back_by_another_server_as_it_was_written(tmp_path: Path) -> None:
    stored(disk(tmp_path), 7)
    other = disk(tmp_path)
    (found,) = other.states()
    read = other.read(found)
    assert read is not None
    assert np.array_equal(found.tokens, tokens(first=7))
    assert np.array_equal(read, state(7))


@pytest.mark.skipif(os.name != "posix", reason="only POSIX systems have these modes")
def test_only_the_owner_can_read_what_was_said(tmp_path: Path) -> None:
    stored(disk(tmp_path), 1)

    file = only_file(tmp_path)

    assert (file.stat().st_mode & 0o077, file.parent.stat().st_mode & 0o077) == (0, 0)


@pytest.mark.parametrize("changed", [{"model": "two"}, {"kv_type": "q8_0"}, {"build": "new"}])
def test_another_version_sees_nothing_and_removes_nothing(tmp_path: Path, changed: dict[str, str]) -> None:
    stored(disk(tmp_path), 7)
    assert not DiskCache(tmp_path, PARTS | changed, "tiny", MIB).states()
    assert firsts(disk(tmp_path)) == {7}


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.6, 0.99])
def test_a_file_that_is_cut_short_is_ignored_and_removed(tmp_path: Path, share: float) -> None:
    stored(disk(tmp_path), 7)
    path = only_file(tmp_path)
    os.truncate(path, int(path.stat().st_size * share))
    assert not disk(tmp_path).states()
    assert not path.exists()


def test_one_changed_byte_anywhere_makes_a_state_unusable(tmp_path: Path) -> None:
    stored(disk(tmp_path), 7)
    path = only_file(tmp_path)
    whole = path.read_bytes()
    for place in range(0, len(whole), 37):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        cache = disk(tmp_path)
        read = [cache.read(found) for found in cache.states()]
        wrong = [found for found in read if found is not None and not np.array_equal(found, state(7))]
        assert not wrong
        named = b"tiny" in whole[place - 4 : place + 4]  # the model's name is for people
        assert named or not any(found is not None for found in read), place
        path.write_bytes(whole)


@pytest.mark.parametrize(
    "content", [b"", b"GGUF", b"PSKV\x00\x01\r\n", b"PSKV\x00\x01\r\n\xff\xff\xff\xff", b"\x00" * 9000]
)
def test_a_foreign_file_is_ignored_and_removed(tmp_path: Path, content: bytes) -> None:
    stored(disk(tmp_path), 7)
    foreign = only_file(tmp_path).with_name("foreign.state")
    foreign.write_bytes(content)
    assert firsts(disk(tmp_path)) == {7}
    assert not foreign.exists()


def test_a_header_that_promises_too_much_is_refused_without_taking_memory(tmp_path: Path) -> None:
    huge = Header(version="v", model="m", token_count=2**40, state_bytes=2**60, tokens_sum=0, state_sum=zlib.crc32(b""))
    path = cache_files.write_state(tmp_path, huge, b"", memoryview(b""))
    with pytest.raises(CacheFileFault):
        cache_files.read_header(path, "v")


def test_the_least_recently_used_states_go_first(tmp_path: Path) -> None:
    cache = stored(disk(tmp_path, 5 * 1100), 1000, 2000, 3000, size=1000)
    for age, found in enumerate(sorted(cache.states(), key=lambda found: int(found.tokens[0]))):
        os.utime(found.file.path, (1e9 + age, 1e9 + age))
    first = next(found for found in cache.states() if found.tokens[0] == 1000)
    assert cache.read(first) is not None  # used just now
    stored(cache, 4000, size=1000)
    assert firsts(cache) == {1000, 3000, 4000}


def test_the_budget_holds_over_all_versions(tmp_path: Path) -> None:
    old = stored(disk(tmp_path, model="old"), 1000, 2000, size=3000)
    for found in old.states():
        os.utime(found.file.path, (1e9, 1e9))
    stored(disk(tmp_path, 9000), 3000, 4000, size=3000)
    assert not disk(tmp_path, model="old").states()
    assert firsts(disk(tmp_path)) == {3000, 4000}


def test_a_state_over_the_budget_is_not_written(tmp_path: Path) -> None:
    assert not stored(disk(tmp_path, 500), 1000, size=1000).states()


def test_a_longer_state_replaces_what_it_continues(tmp_path: Path) -> None:
    cache = stored(disk(tmp_path), 7)
    cache.write(tokens(first=7, count=300), state(8), replacing=True)
    cache.flush(30)
    assert [len(found.tokens) for found in cache.states()] == [300]
    assert cache.covers(tokens(first=7, count=310))
    assert not cache.covers(tokens(first=7, count=400))


def test_what_another_server_adds_or_clears_is_noticed(tmp_path: Path) -> None:
    ours, theirs = disk(tmp_path), disk(tmp_path)
    stored(theirs, 7)
    (found,) = ours.states()
    assert cache_files.clear(tmp_path)[0] == 1
    assert ours.read(found) is None
    assert not ours.states()
    assert not theirs.states()


def test_the_same_conversation_written_by_two_servers_stays_readable(tmp_path: Path) -> None:
    ours = stored(disk(tmp_path), 7)
    (found,) = ours.states()
    theirs = disk(tmp_path)
    theirs.write(tokens(first=7), state(99, 2000), replacing=False)
    theirs.flush(30)
    read = ours.read(found)
    assert read is not None
    assert np.array_equal(read, state(99, 2000))


def test_two_servers_writing_at_once_leave_only_whole_files(tmp_path: Path) -> None:
    both = [disk(tmp_path, 40_000), disk(tmp_path, 40_000)]
    for first in range(1000, 9000, 200):
        both[first // 200 % 2].write(tokens(first=first), state(first % 251, 3000), replacing=True)
    for cache in both:
        cache.flush(60)
    fresh = disk(tmp_path)
    found = fresh.states()
    assert found
    assert all(fresh.read(one) is not None for one in found)
    cache_files.evict(tmp_path, 40_000)
    assert (
        sum(file.size_bytes for folder in cache_files.versions(tmp_path) for file in cache_files.states(folder))
        <= 40_000
    )


def test_a_folder_that_cannot_be_written_costs_only_the_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert not stored(disk(tmp_path / "file"), 7).states()


def test_writing_gives_way_to_an_answer_but_never_for_ever(tmp_path: Path) -> None:
    cache = disk(tmp_path)
    cache.pause()
    cache.write(tokens(first=7), state(7), replacing=True)
    assert not cache.states()
    assert cache.covers(tokens(first=7))  # it is on its way
    until(cache.states)


def test_what_a_killed_writer_leaves_is_ignored_and_swept(tmp_path: Path) -> None:
    program = f"""
import sys, numpy, pathlib
from tests.engines.llama.test_cache_files import disk, tokens, state
cache = disk(pathlib.Path(sys.argv[1]))
for first in range(1000, 100000, 200):
    cache.write(tokens(first=first), state(first % 251, {8 * MIB}), replacing=True)
    cache.flush(60)
"""
    for kill_at in (0.1, 0.4, 0.7, 1.0):
        with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]) as writer:
            until(partial(unfinished, tmp_path, int(kill_at * 8 * MIB)))
            writer.kill()
        cache = disk(tmp_path)
        for found in cache.states():
            read = cache.read(found)
            assert read is not None
            assert np.array_equal(read, state(int(found.tokens[0]) % 251, 8 * MIB))
        cache_files.evict(tmp_path, 3 * 9 * MIB)
        assert not list(tmp_path.rglob("*.tmp"))


def unfinished(root: Path, size: int) -> bool:
    """Whether a file is being written and has come so far."""
    for path in root.rglob("*.tmp"):
        try:
            if path.stat().st_size >= size:
                return True
        except OSError:
            continue
    return False


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.0005)
