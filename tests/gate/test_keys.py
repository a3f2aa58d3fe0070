"""Keys: who is let in with what words, what lies on disk, and what other processes see."""

import asyncio
import hashlib
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketserver.errors import Code, Refusal, StartupError, UsageError
from pocketserver.gate.keys import MAIN, MOST_KEYS, SCOPES, Identity, KeyStore
from tests.waiting import until

POSIX = pytest.mark.skipif(os.name != "posix", reason="mode bits say nothing on this system")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def store(home: Path) -> KeyStore:
    return KeyStore(home)


class Clock:
    """A monotonic clock that a test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def refusal(store: KeyStore, *authorization: str, x_api_key: tuple[str, ...] = (), scope: str = "chat") -> Refusal:
    with pytest.raises(Refusal) as caught:
        store.authenticate(authorization, x_api_key, scope=scope)
    return caught.value


# What a request may say


@pytest.mark.parametrize("form", ["Bearer {}", "bearer {}", "BEARER {}", "Bearer   {}", " Bearer {} "])
def test_the_right_key_is_let_in_whatever_the_case_of_the_scheme(store: KeyStore, form: str) -> None:
    identity = store.authenticate([form.format(store.main_key())])

    assert identity.name == MAIN
    assert identity.scopes == set(SCOPES)


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ([], Code.MISSING_API_KEY),
        (["Bearer "], Code.MISSING_API_KEY),
        (["Bearer"], Code.MISSING_API_KEY),
        ([""], Code.MISSING_API_KEY),
        (["Basic OktFWQ=="], Code.MISSING_API_KEY),
        (["KEY"], Code.MISSING_API_KEY),
        (["Bearer sk-wrong"], Code.INVALID_API_KEY),
        (["Bearer KEY, x"], Code.INVALID_API_KEY),
        (["Bearer KEYx"], Code.INVALID_API_KEY),
        (["Bearer key"], Code.INVALID_API_KEY),
        (["Bearer sk-wrong", "Bearer KEY"], Code.INVALID_API_KEY),
        (["Bearer KEY", "Bearer KEY"], Code.INVALID_API_KEY),
    ],
)
def test_missing_malformed_and_wrong_credentials_are_told_apart(
    store: KeyStore, headers: list[str], code: Code
) -> None:
    key = store.main_key()

    refused = refusal(store, *(header.replace("KEY", key) for header in headers))

    assert refused.code is code
    assert "Authorization: Bearer sk-" in refused.message
    assert key not in refused.message


@pytest.mark.parametrize(
    "key",
    ["kéy", b"k\xe9y".decode("utf-8", "surrogateescape"), "“sk-abc”", "ключ", "\ud800", "sk-" + "x" * 7000, "\x00"],
)
def test_a_key_of_any_bytes_is_wrong_and_never_a_fault(store: KeyStore, key: str) -> None:
    store.main_key()

    assert refusal(store, f"Bearer {key}").code is Code.INVALID_API_KEY
    assert refusal(store, x_api_key=(key,)).code is Code.INVALID_API_KEY


@given(st.lists(st.text(max_size=40), max_size=3))
def test_no_header_lets_in_or_breaks_anything(values: list[str]) -> None:
    store = KeyStore(Path("/nonexistent"), main_key_override="the right key for this run")

    with pytest.raises(Refusal):
        store.authenticate(values, values)


def test_x_api_key_counts_where_the_caller_passes_it(store: KeyStore) -> None:
    key = store.main_key()

    assert store.authenticate([], [key]).name == MAIN
    assert store.authenticate(["Bearer placeholder"], [key]).name == MAIN
    assert refusal(store, x_api_key=("sk-wrong",)).code is Code.INVALID_API_KEY
    assert refusal(store, x_api_key=(key, key)).code is Code.INVALID_API_KEY


def test_without_a_key_the_metrics_tell_how_to_set_a_scrape_up(store: KeyStore) -> None:
    message = refusal(store, scope="metrics").message

    assert "pocketserver key new prometheus --scope metrics" in message
    assert "credentials_file" in message


def test_a_missing_scope_is_named(store: KeyStore) -> None:
    identity = store.authenticate([f"Bearer {store.new('ann')}"])
    store.require(identity, "chat")

    with pytest.raises(Refusal) as caught:
        store.require(identity, "metrics")

    assert caught.value.code is Code.INSUFFICIENT_SCOPE
    assert "'metrics'" in caught.value.message
    assert "'ann'" in caught.value.message


def test_an_identity_does_not_show_its_digest(store: KeyStore) -> None:
    identity = store.authenticate([f"Bearer {store.main_key()}"])

    assert hashlib.sha256(store.main_key().encode()).hexdigest() not in repr(identity)
    assert "digest" not in repr(identity)


# What lies on disk


def test_the_main_key_has_256_bits_and_stays_the_same(store: KeyStore, home: Path) -> None:
    key = store.main_key()

    assert re.fullmatch(r"sk-[A-Za-z0-9_-]{43}", key)
    assert KeyStore(home).main_key() == key


@POSIX
def test_keys_lie_in_a_private_file_in_a_private_folder(store: KeyStore, home: Path) -> None:
    store.main_key()
    store.new("ann")
    store.write_uses()

    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in home.iterdir()} == {0o600}


def test_of_a_named_key_only_its_hash_is_kept(store: KeyStore, home: Path) -> None:
    key = store.new("ann", ["metrics", "chat"])

    text = (home / "keys.json").read_text()
    (entry,) = json.loads(text)["named"]
    assert key not in text
    assert entry["sha256"] == hashlib.sha256(key.encode()).hexdigest()
    assert entry["scopes"] == ["chat", "metrics"]
    assert entry["last4"] == key[-4:]


def test_the_key_of_this_run_is_never_written(home: Path) -> None:
    store = KeyStore(home, main_key_override="only for now")
    store.new("ann")

    assert store.main_key() == "only for now"
    assert store.authenticate(["Bearer only for now"]).name == MAIN
    assert all("only for now" not in path.read_text() for path in home.iterdir())


@POSIX
def test_a_file_that_others_may_read_is_refused_with_the_remedy(store: KeyStore, home: Path) -> None:
    store.main_key()
    (home / "keys.json").chmod(0o640)

    with pytest.raises(StartupError, match="chmod 600"):
        KeyStore(home).main_key()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"main": 5}', '{"named": [{"name": "a", "sha256": "zz"}]}'])
def test_a_broken_file_is_explained_and_left_alone(store: KeyStore, home: Path, content: str) -> None:
    store.main_key()
    (home / "keys.json").write_text(content)

    with pytest.raises(StartupError, match="is not a key file"):
        KeyStore(home).new("ann")
    assert (home / "keys.json").read_text() == content


def test_a_file_that_breaks_while_serving_leaves_the_keys_as_they_were(home: Path) -> None:
    clock = Clock()
    store = KeyStore(home, clock=clock)
    key = store.main_key()
    assert store.authenticate([f"Bearer {key}"]).name == MAIN

    (home / "keys.json").write_text("{")
    clock.now += 10

    assert store.authenticate([f"Bearer {key}"]).name == MAIN
    assert store.problem is not None


def test_a_write_that_fails_leaves_no_rubbish(store: KeyStore, home: Path) -> None:
    home.mkdir()
    (home / "keys.json").mkdir()  # a folder cannot be replaced by a file

    with pytest.raises(StartupError):
        store.main_key()
    assert sorted(path.name for path in home.iterdir()) in (["keys.json"], ["keys.json", "keys.lock"])


# Named keys


@pytest.mark.parametrize("name", ["", "main", "a b", "../x", "-x", "x" * 33, "ä", "a\n"])
def test_names_that_cannot_be_are_refused(store: KeyStore, name: str) -> None:
    with pytest.raises(UsageError):
        store.new(name)


@pytest.mark.parametrize("scopes", [[], ["root"], ["chat", "root"]])
def test_scopes_that_cannot_be_are_refused_with_the_list(store: KeyStore, scopes: list[str]) -> None:
    with pytest.raises(UsageError, match="chat, metrics, admin"):
        store.new("ann", scopes)


def test_a_name_is_given_once(store: KeyStore) -> None:
    store.new("ann")

    with pytest.raises(StartupError, match="already"):
        store.new("ann")


def test_the_number_of_keys_is_bounded(store: KeyStore, home: Path) -> None:
    store.new("first")
    document = json.loads((home / "keys.json").read_text())
    document["named"] = [{**document["named"][0], "name": f"k{number}"} for number in range(MOST_KEYS - 1)]
    (home / "keys.json").write_text(json.dumps(document))

    with pytest.raises(StartupError, match="Revoke one"):
        store.new("one-more")


def test_revoking_an_unknown_name_tells_the_known_ones(store: KeyStore) -> None:
    store.new("ann")

    with pytest.raises(StartupError, match="main, ann"):
        store.revoke("bo")


def test_revoking_the_main_key_puts_a_new_one_in_its_place(store: KeyStore) -> None:
    old = store.main_key()

    store.revoke(MAIN)

    assert store.main_key() != old
    assert refusal(store, f"Bearer {old}").code is Code.INVALID_API_KEY


def test_the_list_shows_names_and_last_use_but_no_key(home: Path) -> None:
    store = KeyStore(home)
    main, ann = store.main_key(), store.new("ann", ["metrics"])
    store.authenticate([f"Bearer {ann}"])
    store.write_uses()

    listed = {key.name: key for key in KeyStore(home).list()}

    assert list(listed) == ["main", "ann"]
    assert listed["main"].last_used is None
    assert listed["ann"].last_used is not None
    assert listed["ann"].scopes == ("metrics",)
    assert main not in repr(listed)
    assert ann not in repr(listed)


# Two processes


def test_what_another_process_changes_takes_effect_here(home: Path) -> None:
    clock = Clock()
    server, owner = KeyStore(home, clock=clock), KeyStore(home)
    server.main_key()

    key = owner.new("ann")
    identity = server.authenticate([f"Bearer {key}"])  # at once, without waiting for the next look at the file
    owner.revoke("ann")
    clock.now += 1

    assert identity.name == "ann"
    assert not server.is_valid("ann")
    assert not server.is_valid(identity)
    assert refusal(server, f"Bearer {key}").code is Code.INVALID_API_KEY


def test_a_key_with_the_name_of_a_revoked_one_is_another_key(store: KeyStore) -> None:
    before = store.authenticate([f"Bearer {store.new('ann')}"])
    store.revoke("ann")
    store.new("ann")

    assert store.is_valid("ann")
    assert not store.is_valid(before)


async def test_the_owner_of_streams_hears_of_revoked_keys(home: Path) -> None:
    server, owner = KeyStore(home), KeyStore(home)
    owner.main_key()
    owner.new("ann")
    gone: list[Identity] = []

    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(server.watch(gone.append, every_seconds=0.01))
        await until(lambda: server.is_valid("ann"))
        await asyncio.to_thread(owner.revoke, "ann")
        await until(lambda: bool(gone))
        watching.cancel()

    assert [identity.name for identity in gone] == ["ann"]


MANY_KEYS = """
import sys
from pathlib import Path
from pocketserver.gate.keys import KeyStore
store = KeyStore(Path(sys.argv[1]))
print(store.main_key())
for number in range(8):
    store.new(f"{sys.argv[2]}-{number}")
"""


@pytest.fixture
def writers(home: Path) -> Iterator[list[subprocess.Popen[str]]]:
    processes = [
        subprocess.Popen([sys.executable, "-c", MANY_KEYS, str(home), f"p{number}"], stdout=subprocess.PIPE, text=True)
        for number in range(3)
    ]
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def test_processes_writing_together_lose_no_key(home: Path, writers: list[subprocess.Popen[str]]) -> None:
    main_keys = {process.communicate(timeout=60)[0].strip() for process in writers}

    assert [process.returncode for process in writers] == [0, 0, 0]
    assert len(main_keys) == 1
    assert len(KeyStore(home).list()) == 1 + 3 * 8


def test_a_key_that_was_right_before_is_wrong_at_once_when_it_is_revoked(tmp_path: Path) -> None:
    store = KeyStore(tmp_path)
    key = store.new("phone")
    header = [f"Bearer {key}"]
    assert store.authenticate(header).name == "phone"
    assert store.authenticate(header).name == "phone"  # remembered now

    store.revoke("phone")

    with pytest.raises(Refusal) as caught:
        store.authenticate(header)
    assert caught.value.code is Code.INVALID_API_KEY
