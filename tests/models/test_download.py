"""Fetching over HTTP from a server that breaks off, lies, stalls, changes its mind and points elsewhere."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiohttp import web

from pocketserver.errors import Code
from pocketserver.models.catalog import Catalog, CatalogEntry, HuggingFaceSource, UrlSource
from pocketserver.models.download import Patience
from pocketserver.models.guarded_resolver import GuardedResolver
from pocketserver.models.library import DiskLibrary, Step
from pocketserver.models.progress import Progress, Stage
from pocketserver.models.pull import PullMeans, pull
from pocketserver.models.pull_fault import PullFault
from pocketserver.models.store import ModelStore
from tests.models.download_server import DownloadServer, serving
from tests.models.gguf_builder import gguf
from tests.models.test_library import refused, steps_of
from tests.waiting import until

MODEL = gguf(data_bytes=3 << 20)
SHA256 = hashlib.sha256(MODEL).hexdigest()
MEANS = PullMeans(patience=Patience(stall_seconds=20.0, attempts=3, backoff_seconds=0.01))
IMPATIENT = PullMeans(patience=Patience(stall_seconds=0.3, attempts=3, backoff_seconds=0.01))


@pytest.fixture
async def server() -> AsyncIterator[DownloadServer]:
    async with serving(MODEL) as server:
        yield server


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "home" / "models")


def entry(url: str, *, size_bytes: int = len(MODEL), sha256: str = SHA256) -> CatalogEntry:
    return CatalogEntry(name="tiny:q4", size_bytes=size_bytes, sha256=sha256, source=UrlSource(url=url))


async def fetch(store: ModelStore, wanted: CatalogEntry, means: PullMeans = MEANS) -> list[Progress]:
    reports: list[Progress] = []
    path = await pull(wanted, store, reports.append, means)
    assert path.read_bytes() == MODEL
    assert left_behind(store) == ["tiny@q4.gguf"]
    return reports


async def fault_of(store: ModelStore, wanted: CatalogEntry, means: PullMeans = MEANS) -> PullFault:
    with pytest.raises(PullFault) as caught:
        await pull(wanted, store, lambda _: None, means)
    assert "\n" not in str(caught.value)
    assert store.list() == []
    return caught.value


def left_behind(store: ModelStore) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir() if not path.name.endswith((".lock", ".digests.json")))


def status(code: int, **headers: str) -> Callable[[DownloadServer, web.Request], web.StreamResponse]:
    return lambda _server, _request: web.Response(
        status=code, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )


async def test_a_file_is_fetched_checked_and_reported(server: DownloadServer, store: ModelStore) -> None:
    reports = await fetch(store, entry(server.url))

    done = [report.done_bytes for report in reports if report.stage is Stage.DOWNLOADING]
    assert done == sorted(done)
    assert done[-1] == len(MODEL)
    assert [report.stage for report in reports[-3:]] == [Stage.VERIFYING, Stage.STORING, Stage.DONE]
    assert store.find("tiny:Q4") is not None
    await fetch(store, entry(server.url))
    assert len(server.requests) == 1


async def test_a_break_is_followed_by_the_rest(server: DownloadServer, store: ModelStore) -> None:
    server.break_after = 1 << 20

    await fetch(store, entry(server.url))

    assert len(server.requests) == 2
    assert server.requests[1].headers["If-Range"] == '"one"'
    begun = int(server.asked[1].removeprefix("bytes=").removesuffix("-"))
    assert 0 < begun <= 1 << 20


async def test_silence_is_followed_by_another_request(server: DownloadServer, store: ModelStore) -> None:
    server.stall_after = 1 << 20

    await fetch(store, entry(server.url), IMPATIENT)

    assert server.asked[1].startswith("bytes=")


async def test_a_server_that_ignores_ranges_begins_anew(server: DownloadServer, store: ModelStore) -> None:
    server.break_after, server.ignore_range = 1 << 20, True

    await fetch(store, entry(server.url))

    assert server.asked[1].startswith("bytes=")


async def test_a_file_that_changes_between_two_requests_begins_anew(server: DownloadServer, store: ModelStore) -> None:
    server.content, server.break_after = bytes(len(MODEL)), 1 << 20

    def change(changed: DownloadServer, _request: web.Request) -> None:
        changed.content, changed.etag = MODEL, '"two"'

    server.bad_days = [lambda *_: None, change]

    await fetch(store, entry(server.url))

    assert server.requests[1].headers["If-Range"] == '"one"'


async def test_a_change_that_the_server_hides_is_found_by_the_checksum(
    server: DownloadServer, store: ModelStore
) -> None:
    server.content, server.break_after, server.etag = bytes(len(MODEL)), 1 << 20, ""

    def change(changed: DownloadServer, _request: web.Request) -> None:
        changed.content = MODEL

    server.bad_days = [lambda *_: None, change]

    fault = await fault_of(store, entry(server.url))

    assert fault.code is Code.UPSTREAM_FAILED
    assert "is not the file that the catalogue's checksum belongs to; it was removed" in str(fault)
    assert left_behind(store) == []
    await fetch(store, entry(server.url))


async def test_a_file_of_another_length_is_refused_before_it_is_read(server: DownloadServer, store: ModelStore) -> None:
    fault = await fault_of(store, entry(server.url, size_bytes=len(MODEL) - 1))

    assert f"announces {len(MODEL):,} bytes, the catalogue {len(MODEL) - 1:,}" in str(fault)


async def test_more_than_the_catalogue_says_is_never_written(store: ModelStore) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + MODEL + bytes(1 << 20))
        writer.close()

    async with await asyncio.start_server(endless, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        fault = await fault_of(store, entry(f"http://127.0.0.1:{port}/x"))

    assert "sends more than" in str(fault)
    assert left_behind(store) == []


async def test_a_server_that_never_sends_all_is_given_up_and_the_part_kept(
    server: DownloadServer, store: ModelStore
) -> None:
    def cut(cutting: DownloadServer, _request: web.Request) -> None:
        cutting.break_after = 0

    server.break_after = 1 << 20
    server.bad_days = [lambda *_: None, cut, cut, cut]

    fault = await fault_of(store, entry(server.url))

    assert fault.code is Code.UPSTREAM_UNREACHABLE
    assert "what came is kept" in str(fault)
    assert left_behind(store) == [".tiny@q4.gguf.part", ".tiny@q4.gguf.part.json"]
    await fetch(store, entry(server.url))
    assert server.sent_bytes < 2 * len(MODEL)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (404, "answered 404. Check the catalogue's entry"),
        (401, "answered 401: it wants a token, or its terms accepted"),
        (403, "answered 403"),
    ],
)
async def test_a_refusal_says_what_to_do(code: int, said: str, server: DownloadServer, store: ModelStore) -> None:
    server.bad_days = [status(code)]

    fault = await fault_of(store, entry(server.url))

    assert (fault.code, said in str(fault)) == (Code.UPSTREAM_FAILED, True)


@pytest.mark.parametrize("code", [429, 503, 500])
async def test_a_busy_server_is_asked_again(code: int, server: DownloadServer, store: ModelStore) -> None:
    server.bad_days = [status(code, Retry_After="0"), status(code)]

    await fetch(store, entry(server.url))

    assert len(server.requests) == 3


async def test_a_server_that_stays_busy_is_given_up(server: DownloadServer, store: ModelStore) -> None:
    server.bad_days = [status(429)] * 3

    assert "it answered 429" in str(await fault_of(store, entry(server.url)))


async def test_nobody_listening_is_explained(store: ModelStore) -> None:
    async with serving(MODEL) as gone:
        url = gone.url

    fault = await fault_of(store, entry(url))

    assert fault.code is Code.UPSTREAM_UNREACHABLE
    assert "no connection" in str(fault)


async def test_redirects_on_the_catalogues_own_host_are_followed(server: DownloadServer, store: ModelStore) -> None:
    server.bad_days = [status(302, Location="/elsewhere?signed=1")]

    await fetch(store, entry(server.url))

    assert server.requests[1].path_qs == "/elsewhere?signed=1"


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("http://localhost:{port}/x", "'localhost', which is no public address"),
        ("http://169.254.169.254/latest", "no public address"),
        ("http://[::1]:{port}/x", "no public address"),
        ("http://[::ffff:10.0.0.1]/x", "no public address"),
        ("http://2130706433:{port}/x", "an answer that cannot be read"),
        ("file:///etc/passwd", "redirects to no web address"),
        ("", "redirects to no web address"),
    ],
)
async def test_redirects_into_the_private_net_are_not(
    location: str, said: str, server: DownloadServer, store: ModelStore
) -> None:
    server.bad_days = [status(302, Location=location.format(port=server.port))]

    fault = await fault_of(store, entry(server.url))

    assert fault.code is Code.UPSTREAM_FAILED
    assert said in str(fault)
    assert len(server.requests) == 1


async def test_redirects_end(server: DownloadServer, store: ModelStore) -> None:
    server.bad_days = [status(307, Location="/again")] * 20

    assert "redirects more than 5 times" in str(await fault_of(store, entry(server.url)))


async def test_names_that_lead_into_the_private_net_are_refused_unless_named_by_the_catalogue() -> None:
    with pytest.raises(PullFault, match="no public address"):
        await GuardedResolver(frozenset()).resolve("localhost", 80)

    assert await GuardedResolver(frozenset({"localhost"})).resolve("localhost", 80)


async def test_cancelling_keeps_the_part_and_the_next_pull_goes_on(server: DownloadServer, store: ModelStore) -> None:
    server.stall_after = 2 << 20
    reports: list[Progress] = []
    pulling = asyncio.create_task(pull(entry(server.url), store, reports.append, MEANS))
    await until(lambda: bool(reports) and reports[-1].done_bytes >= 1 << 20)

    pulling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pulling

    assert store.list() == []
    assert left_behind(store) == [".tiny@q4.gguf.part", ".tiny@q4.gguf.part.json"]
    await fetch(store, entry(server.url))
    assert server.asked[1].startswith("bytes=")


async def test_a_part_of_another_file_is_not_gone_on_with(server: DownloadServer, store: ModelStore) -> None:
    store.folder.mkdir(parents=True)
    (store.folder / ".tiny@q4.gguf.part").write_bytes(bytes(1000))
    note = {"url": server.url, "sha256": "0" * 64, "validator": '"one"'}
    (store.folder / ".tiny@q4.gguf.part.json").write_text(json.dumps(note))

    await fetch(store, entry(server.url))

    assert server.asked == [""]


async def test_a_full_disk_is_noticed_before_anything_is_asked_for(server: DownloadServer, store: ModelStore) -> None:
    fault = await fault_of(store, entry(server.url, size_bytes=1 << 60))

    assert "of disk space" in str(fault)
    assert server.requests == []


async def test_a_pulled_model_replaces_one_of_its_name_settings_too(server: DownloadServer, store: ModelStore) -> None:
    store.folder.mkdir(parents=True)
    (store.folder / "Tiny@Q4.gguf").write_bytes(gguf())
    (store.folder / "Tiny@Q4.toml").write_text('system = "S"')

    await pull(entry(server.url), store, lambda _: None, MEANS)

    found = store.find("tiny:q4")
    assert found is not None
    assert (found.size_bytes, found.settings.system) == (len(MODEL), "")
    assert left_behind(store) == ["Tiny@Q4.gguf"]


def library(store: ModelStore, *entries: CatalogEntry) -> DiskLibrary:
    return DiskLibrary(store, Catalog({each.name: each for each in entries}), means=MEANS)


async def test_the_steps_are_ollamas(server: DownloadServer, store: ModelStore) -> None:
    models = library(store, entry(server.url))

    steps = await steps_of(models.pull("Tiny:Q4"))

    words = list(dict.fromkeys(step.status for step in steps))
    assert words == [
        "pulling manifest",
        f"pulling {SHA256[:12]}",
        "verifying sha256 digest",
        "writing manifest",
        "success",
    ]
    loading = [step for step in steps if step.digest]
    assert {(step.digest, step.total) for step in loading} == {(f"sha256:{SHA256}", len(MODEL))}
    assert loading[-1].completed == len(MODEL)
    stored = await models.find("tiny:q4")
    assert stored is not None
    assert (stored.digest, stored.digest_known) == (SHA256, True)


async def test_two_readers_share_one_download_and_one_may_leave(server: DownloadServer, store: ModelStore) -> None:
    server.stall_after = 1 << 20
    models = library(store, entry(server.url))

    async with models.pull("tiny:q4") as staying:
        async with models.pull("tiny:q4") as leaving:
            assert (await anext(leaving)).status == "pulling manifest"
        server.released.set()
        steps = [step async for step in staying]

    assert steps[-1] == Step(status="success")
    assert len([request for request in server.requests if not request.headers.get("Range")]) == 1


async def test_when_the_last_reader_leaves_the_download_stops_and_can_go_on(
    server: DownloadServer, store: ModelStore
) -> None:
    server.stall_after = 2 << 20
    models = library(store, entry(server.url))

    async with models.pull("tiny:q4") as first, models.pull("tiny:q4"):
        async for step in first:
            if step.completed >= 1 << 20:
                break

    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("pull")] == []
    assert await models.find("tiny:q4") is None
    steps = await steps_of(models.pull("tiny:q4"))
    assert steps[-1] == Step(status="success")
    assert server.asked[1].startswith("bytes=")


async def test_a_failure_reaches_every_reader(server: DownloadServer, store: ModelStore) -> None:
    server.bad_days = [status(404)]
    models = library(store, entry(server.url))

    async with models.pull("tiny:q4") as first, models.pull("tiny:q4") as second:
        refusals = [await refused(_drain(steps)) for steps in (first, second)]

    assert {refusal.code for refusal in refusals} == {Code.UPSTREAM_FAILED}
    assert (await steps_of(models.pull("tiny:q4")))[-1].status == "success"


async def _drain(steps: AsyncIterator[Step]) -> None:
    async for _ in steps:
        pass


@pytest.mark.parametrize("name", ["evil.example:8443/x/y", "http://169.254.169.254/latest", "file:///etc/passwd", ""])
async def test_what_the_catalogue_has_not_is_asked_for_nowhere(name: str, store: ModelStore) -> None:
    refusal = await refused(steps_of(library(store).pull(name)))

    assert refusal.code is Code.MODEL_NOT_FOUND
    assert not store.folder.exists()


async def test_a_file_of_a_repository_is_asked_for_with_the_token_and_it_goes_nowhere_else(
    server: DownloadServer, store: ModelStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_TOKEN", "hf_secret_of_the_test")
    source = HuggingFaceSource(
        repo="somebody/tiny", file="q4/tiny.gguf", revision="v1", endpoint=f"http://127.0.0.1:{server.port}"
    )
    wanted = CatalogEntry(name="tiny:q4", size_bytes=len(MODEL), sha256=SHA256, source=source)
    async with serving(MODEL) as elsewhere:
        server.bad_days = [status(302, Location=elsewhere.url)]
        await fetch(store, wanted)

        assert server.requests[0].path == "/somebody/tiny/resolve/v1/q4/tiny.gguf"
        assert server.requests[0].headers["Authorization"] == "Bearer hf_secret_of_the_test"
        assert "Authorization" not in elsewhere.requests[0].headers
    assert "hf_secret" not in caplog.text
    server.bad_days = [status(403)]
    for path in store.folder.glob("tiny*"):
        path.unlink()
    assert "hf_secret" not in str(await fault_of(store, wanted))
