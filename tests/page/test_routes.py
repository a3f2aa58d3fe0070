"""The page over a socket: who gets it, what it tells to whom, pairing, the owner, and foreign pages."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pocketserver.engines.sim.engine import SimEngine, SimOptions
from pocketserver.page.owner import SESSION_HEADER
from pocketserver.simulator.presets import load_preset
from tests.serving import Running, running
from tests.waiting import until

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
HI = {"messages": [{"role": "user", "content": "hi"}]}
OWNER_ROUTES = [
    ("GET", "/page/key"),
    ("GET", "/page/keys"),
    ("POST", "/page/keys"),
    ("DELETE", "/page/keys/main"),
    ("GET", "/page/pairing"),
    ("POST", "/page/pairing"),
    ("POST", "/page/stop"),
    ("POST", "/page/model"),
    ("DELETE", "/page/owner"),
]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as served:
        yield served


@pytest.fixture
async def http(server: Running) -> AsyncIterator[aiohttp.ClientSession]:
    """Without any key."""
    async with aiohttp.ClientSession(base_url=server.origin) as session:
        yield session


async def document(session: aiohttp.ClientSession, method: str, path: str, **options: Any) -> tuple[int, Any]:
    async with session.request(method, path, **options) as response:
        return response.status, await response.json()


async def owner_of(server: Running, session: aiohttp.ClientSession) -> dict[str, str]:
    """Headers of an owner's session, come by as a browser does."""
    assert server.server.page is not None
    token = server.server.page.owner_url().partition("#owner=")[2]
    status, answer = await document(session, "POST", "/page/owner", json={"token": token})
    assert status == 200
    return {SESSION_HEADER: answer["session"]}


# Who gets the page


@pytest.mark.parametrize(("profile", "plain"), [("pocketllm", "pocketserver "), ("hub", "Ollama is running")])
async def test_browsers_get_the_page_and_programs_a_line(tmp_path: Path, profile: str, plain: str) -> None:
    async with running(tmp_path, profile=profile) as server, aiohttp.ClientSession(server.origin) as http:
        async with http.get("/", headers=BROWSER) as page:
            text = await page.text()
        async with http.get("/") as line:
            said = await line.text()
        async with http.get("/v1", headers=BROWSER, allow_redirects=False) as base:
            pass

    assert (page.status, page.content_type) == (200, "text/html")
    assert page.headers["Vary"] == "Accept"
    assert server.server.base_url in text
    assert (line.status, line.content_type) == (200, "text/plain")
    assert said.startswith(plain)
    assert (base.status, base.headers["Location"]) == (303, "/")


@pytest.mark.parametrize("profile", ["pooled", "roach"])
async def test_other_profiles_have_no_page(tmp_path: Path, profile: str) -> None:
    async with running(tmp_path, profile=profile) as server, aiohttp.ClientSession(server.origin) as http:
        async with http.get("/", headers=BROWSER) as root:
            assert root.content_type == "text/plain"
        for path in ("/v1", "/page/main.js", "/page/state"):
            async with http.get(path, headers=BROWSER, allow_redirects=False) as response:
                assert response.status == 404, path


async def test_no_page_switches_it_off(tmp_path: Path) -> None:
    async with running(tmp_path, page=False) as server, server.session() as http:
        async with http.get("/", headers=BROWSER) as root:
            assert root.content_type == "text/plain"
        for path in ("/v1", "/page/state"):
            async with http.get(path, headers=BROWSER, allow_redirects=False) as response:
                assert response.status == 404


async def test_the_base_url_stays_an_unknown_route_for_programs(server: Running, http: aiohttp.ClientSession) -> None:
    assert (await document(http, "GET", "/v1"))[0] == 401
    async with server.session() as with_key:
        status, answer = await document(with_key, "GET", "/v1")
        posted, _ = await document(with_key, "POST", "/v1", headers=BROWSER)

    assert (status, posted) == (404, 404)
    assert answer["error"]["code"] == "unknown_route"


async def test_the_page_can_be_read_without_scripts(server: Running, http: aiohttp.ClientSession) -> None:
    async with http.get("/", headers=BROWSER) as response:
        text = await response.text()

    assert "{{" not in text
    assert re.search(r'id="sentence">Ready<', text)
    assert re.search(r'id="model-name">sim-1b<', text)
    assert re.search(r'id="context">8,192 tokens<', text)
    assert re.search(r'id="simulated" class="simulated" >SIMULATED', text)
    assert server.key not in text


async def test_every_file_comes_without_a_key_and_guarded(server: Running, http: aiohttp.ClientSession) -> None:
    async with http.get("/", headers=BROWSER) as page:
        text, policy = await page.text(), page.headers["Content-Security-Policy"]
    files = sorted(set(re.findall(r'"(/page/[\w.-]+)"', text)))

    assert len(files) >= 4
    for path in files:
        async with http.get(path) as response:
            assert response.status == 200
            assert response.headers["Content-Security-Policy"] == policy
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert response.headers["Referrer-Policy"] == "no-referrer"
            assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        async with http.get(path, headers={"If-None-Match": response.headers["ETag"]}) as again:
            assert again.status == 304


@pytest.mark.parametrize("path", ["/page/../keys.json", "/page/%2e%2e/files.py", "/page/index.html", "/page/files.py"])
async def test_nothing_else_of_the_package_is_served(server: Running, path: str) -> None:
    async with server.session() as http:
        status, _ = await document(http, "GET", path)

    assert status == 404


# What it tells


async def test_strangers_see_little_and_keys_see_more(server: Running, http: aiohttp.ClientSession) -> None:
    async with server.session() as with_key:
        await document(with_key, "POST", "/v1/chat/completions", json=HI)
        status, seen = await document(with_key, "GET", "/page/state")
    _, stranger = await document(http, "GET", "/page/state")

    assert status == 200
    assert (stranger["state"], stranger["model"], stranger["inside"]) == ("idle", "sim-1b", None)
    assert (stranger["authenticated"], seen["authenticated"], seen["owner"]) == (False, True, False)
    assert seen["inside"]["last"]["completion_tokens"] == 40
    assert seen["inside"]["last"]["key"] == "main"
    assert sum(seen["inside"]["rates"]) > 0
    assert {("127.0.0.1", "main")} <= {(row["address"], row["key"]) for row in seen["inside"]["devices"]}
    assert server.key not in json.dumps(seen)


async def test_where_no_key_is_asked_for_everybody_sees_all(tmp_path: Path) -> None:
    async with running(tmp_path, auth="off") as server, aiohttp.ClientSession(server.origin) as http:
        _, seen = await document(http, "GET", "/page/state")

    assert seen["asks_for_key"] is False
    assert seen["inside"] is not None


async def test_it_says_whose_request_is_answered_and_how_fast(tmp_path: Path) -> None:
    slow = SimEngine(SimOptions(tokens_per_second=200.0))
    async with running(tmp_path, slow) as server, server.session() as http:
        asking = asyncio.create_task(document(http, "POST", "/v1/chat/completions", json={**HI, "max_tokens": 10_000}))
        slow.script(["word "] * 5000)
        seen: dict[str, Any] = {}
        while not (seen.get("inside") or {}).get("requests") or seen["inside"]["requests"][0]["tokens"] < 5:
            _, seen = await document(http, "GET", "/page/state")
        busy = await document(http, "POST", "/v1/chat/completions", json=HI)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: not server.server.door.busy)
        await server.exchange(2)
        _, after = await document(http, "GET", "/page/state")

    assert seen["state"] == "busy"
    [running_request] = seen["inside"]["requests"]
    assert (running_request["key"], running_request["has_model"]) == ("main", True)
    assert sum(seen["inside"]["rates"]) > 0
    assert busy[0] == 429
    assert after["inside"]["requests"] == []
    [told] = after["inside"]["errors"]
    assert told["failure"]["code"] == "model_busy"
    assert "Retry-After" in told["advice"]


async def test_a_loading_model_shows_how_far_it_is(tmp_path: Path) -> None:
    engine = SimEngine(SimOptions(preset=load_preset("iphone-15-pro")))
    async with running(tmp_path, engine) as server, aiohttp.ClientSession(server.origin) as http:
        server.server.simulator.set_state(model=None)  # type: ignore[union-attr]
        _, none = await document(http, "GET", "/page/state")
        server.server.simulator.set_state(model=server.server.model_id)  # type: ignore[union-attr]
        _, seen = await document(http, "GET", "/page/state")

    assert none["state"] == "no_model"
    assert seen["state"] == "loading"
    assert 0 <= seen["progress"] < 1


async def test_looking_at_the_page_writes_no_lines_and_strikes_no_faults(
    server: Running, http: aiohttp.ClientSession
) -> None:
    simulator = server.server.simulator
    assert simulator is not None
    simulator.add_fault("model_busy", when={"next": 1})
    for _ in range(3):
        assert (await document(http, "GET", "/page/state"))[0] == 200
    async with server.session() as with_key:
        struck, _ = await document(with_key, "POST", "/v1/chat/completions", json=HI)

    assert struck == 429
    assert [request.path for request in simulator.requests] == ["/v1/chat/completions"]


# Pairing


async def test_a_code_from_the_owner_gives_a_phone_its_own_key(server: Running, http: aiohttp.ClientSession) -> None:
    owner = await owner_of(server, http)
    _, offer = await document(http, "POST", "/page/pairing", headers=owner)
    status, paired = await document(http, "POST", "/page/pair", json={"code": offer["code"], "name": "iPhone"})
    again, refused = await document(http, "POST", "/page/pair", json={"code": offer["code"], "name": "iPhone"})
    answered, _ = await document(
        http, "POST", "/v1/chat/completions", json=HI, headers={"Authorization": f"Bearer {paired['api_key']}"}
    )
    _, pairing = await document(http, "GET", "/page/pairing", headers=owner)

    assert offer["url"] == f"{server.origin}/#pair={offer['code']}"
    assert re.fullmatch(r"\d{6}", offer["code"])
    assert offer["svg"].startswith("<?xml") or offer["svg"].startswith("<svg")
    assert (status, paired["name"], paired["base_url"]) == (200, "iPhone", server.server.base_url)
    assert answered == 200
    assert (again, refused["error"]["code"]) == (403, "invalid_pairing_code")
    assert (pairing["pairing"]["state"], pairing["pairing"]["name"]) == ("used", "iPhone")


async def test_guessing_codes_meets_the_throttle(tmp_path: Path) -> None:
    async with running(tmp_path, wrong_keys_a_minute=3) as server, aiohttp.ClientSession(server.origin) as http:
        got = [await document(http, "POST", "/page/pair", json={"code": "1", "name": "x"}) for _ in range(4)]

    assert [status for status, _ in got] == [403, 403, 403, 429]
    assert got[-1][1]["error"]["code"] == "too_many_attempts"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"name": "x"}', 400),
        (b'{"code": 123456, "name": "x"}', 400),
        (b'{"code": "' + b"1" * 5000 + b'"}', 413),
    ],
)
async def test_a_body_that_is_none_is_explained(http: aiohttp.ClientSession, body: bytes, status: int) -> None:
    got, answer = await document(http, "POST", "/page/pair", data=body)

    assert got == status
    assert answer["error"]["message"]


# The owner


@pytest.mark.parametrize(("method", "path"), OWNER_ROUTES)
async def test_neither_a_key_nor_loopback_makes_an_owner(server: Running, method: str, path: str) -> None:
    for headers in ({}, server.headers, {**server.headers, SESSION_HEADER: "guess"}):
        async with aiohttp.ClientSession(server.origin) as http:
            status, answer = await document(http, method, path, headers=headers, json={"name": "x", "model": "x"})
            assert (status, answer["error"]["code"]) == (403, "insufficient_scope")


async def test_an_owners_link_is_good_once(server: Running, http: aiohttp.ClientSession) -> None:
    assert server.server.page is not None
    token = server.server.page.owner_url().partition("#owner=")[2]
    first, _ = await document(http, "POST", "/page/owner", json={"token": token})
    second, answer = await document(http, "POST", "/page/owner", json={"token": token})

    assert (first, second, answer["error"]["code"]) == (200, 403, "insufficient_scope")


async def test_the_owner_sees_makes_and_revokes_keys(server: Running, http: aiohttp.ClientSession) -> None:
    owner = await owner_of(server, http)
    _, main = await document(http, "GET", "/page/key", headers=owner)
    _, made = await document(http, "POST", "/page/keys", headers=owner, json={"name": "tablet"})
    taken, said = await document(http, "POST", "/page/keys", headers=owner, json={"name": "tablet"})
    _, listed = await document(http, "GET", "/page/keys", headers=owner)
    await document(http, "DELETE", "/page/keys/tablet", headers=owner)
    missing, _ = await document(http, "DELETE", "/page/keys/tablet", headers=owner)
    refused, _ = await document(http, "GET", "/v1/models", headers={"Authorization": f"Bearer {made['api_key']}"})

    assert main["api_key"] == server.key
    assert (taken, missing) == (400, 400)
    assert "tablet" in said["error"]["message"]
    assert [key["name"] for key in listed["keys"]] == ["main", "tablet"]
    assert refused == 401


async def test_the_owner_stops_the_running_answer(tmp_path: Path) -> None:
    slow = SimEngine(SimOptions(tokens_per_second=1.0))
    async with running(tmp_path, slow) as server, server.session() as http:
        owner = await owner_of(server, http)
        asking = asyncio.create_task(document(http, "POST", "/v1/chat/completions", json=HI))
        await until(lambda: server.server.door.busy)
        _, stopped = await document(http, "POST", "/page/stop", headers=owner)
        status, _ = await asking

    assert stopped == {"stopped": True}
    assert status == 499


async def test_the_owner_changes_the_model(tmp_path: Path) -> None:
    engine = SimEngine(SimOptions(preset=load_preset("iphone-15-pro"), speed=None))
    async with running(tmp_path, engine) as server, server.session() as http:
        owner = await owner_of(server, http)
        _, models = await document(http, "GET", "/v1/models")
        other = next(model["id"] for model in models["data"] if not model["loaded"])
        status, _ = await document(http, "POST", "/page/model", headers=owner, json={"model": other})
        unknown, answer = await document(http, "POST", "/page/model", headers=owner, json={"model": "nothing"})
        _, state = await document(http, "GET", "/page/state", headers=owner)

    assert status == 200
    assert (unknown, answer["error"]["code"]) == (404, "model_not_found")
    assert (state["model"], state["can_switch"]) == (other, True)


async def test_a_session_can_be_ended(server: Running, http: aiohttp.ClientSession) -> None:
    owner = await owner_of(server, http)
    await document(http, "DELETE", "/page/owner", headers=owner)

    assert (await document(http, "GET", "/page/key", headers=owner))[0] == 403


# Foreign pages


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1"])
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/page/state"), ("POST", "/page/pair"), ("POST", "/page/owner"), ("GET", "/page/key")]
)
async def test_another_pages_scripts_are_refused(server: Running, origin: str, method: str, path: str) -> None:
    async with server.session() as http:
        owner = await owner_of(server, http)
        status, answer = await document(http, method, path, headers={"Origin": origin, **owner}, json={})

    assert (status, answer["error"]["code"]) == (403, "origin_not_allowed")


async def test_our_own_page_may_call(server: Running, http: aiohttp.ClientSession) -> None:
    status, _ = await document(http, "GET", "/page/state", headers={"Origin": server.origin})

    assert status == 200


@pytest.mark.parametrize("path", ["/", "/v1", "/page/state", "/page/main.js"])
async def test_a_foreign_name_reaches_nothing(http: aiohttp.ClientSession, path: str) -> None:
    status, answer = await document(http, "GET", path, headers={"Host": "evil.example", **BROWSER})

    assert (status, answer["error"]["code"]) == (403, "host_not_allowed")
