"""What one API promises the others keep: characters, stops, names, faults, each in its own words."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from pocketserver.engines.sim.engine import SimEngine, SimOptions
from pocketserver.engines.sim.rules import NewRule, RawToken, Reply
from tests.cases.every_api import PATHS, ask_api, question
from tests.clients.ollama_serving import serving_real
from tests.serving import Running, running

pytestmark = pytest.mark.asyncio(loop_scope="module")
EVERY = pytest.mark.parametrize("api", PATHS)
STREAMED = pytest.mark.parametrize("stream", [False, True])
SCRIPT = "\U0001f469\u200d\U0001f4bb\u65e5\u672c"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """A simulated device with every API."""
    home = tmp_path_factory.mktemp("home")
    engine = SimEngine(SimOptions(tokens_per_second=None, loads_on_request=True))
    async with running(home, engine, profile="hub") as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def http(hub: Running) -> AsyncIterator[aiohttp.ClientSession]:
    async with hub.session() as session:
        yield session


def says(hub: Running, *tokens: str | RawToken) -> None:
    """The next answer's tokens."""
    assert isinstance(hub.server.engine, SimEngine)
    hub.server.engine.rules.add(NewRule(reply=Reply(tokens=tokens), times=1))


@EVERY
@STREAMED
async def test_characters_in_pieces_arrive_whole(
    hub: Running, http: aiohttp.ClientSession, api: str, stream: bool
) -> None:
    data = SCRIPT.encode()
    says(hub, *(RawToken(base64=piece) for piece in _base64(data[:2], data[2:5], data[5:12], data[12:])))
    reply = await ask_api(http, api, question(api, stream=stream))

    assert reply.status == 200
    assert reply.text == SCRIPT
    assert b"\xef\xbf\xbd" not in reply.body
    assert b"ufffd" not in reply.body.lower()


STOPS: dict[str, dict[str, Any]] = {
    "chat": {"stop": ["DEFGHIJ"]},
    "completions": {"stop": ["DEFGHIJ"]},
    "messages": {"stop_sequences": ["DEFGHIJ"]},
    "ollama chat": {"options": {"stop": ["DEFGHIJ"]}},
    "ollama generate": {"options": {"stop": ["DEFGHIJ"]}},
}


@pytest.mark.parametrize("api", STOPS)
@STREAMED
async def test_nothing_of_a_stop_string_is_told(
    hub: Running, http: aiohttp.ClientSession, api: str, stream: bool
) -> None:
    says(hub, "ABC", "DE", "F", "GH", "IJK")
    reply = await ask_api(http, api, question(api, stream=stream, **STOPS[api]))

    assert reply.text == "ABC"


@EVERY
@STREAMED
@pytest.mark.parametrize("model", ["SIM-1B", "sim-1b:latest", "Sim-1B:Latest", "library/sim-1b"])
async def test_a_model_is_known_by_every_way_to_say_its_name(
    http: aiohttp.ClientSession, api: str, stream: bool, model: str
) -> None:
    reply = await ask_api(http, api, question(api, limit=2, stream=stream, model=model))

    assert reply.status == 200


@EVERY
@STREAMED
async def test_a_model_that_is_not_there_is_no_stream(http: aiohttp.ClientSession, api: str, stream: bool) -> None:
    reply = await ask_api(http, api, question(api, stream=stream, model="no-such"))

    assert (reply.status, reply.content_type) == (404, "application/json")
    assert "no-such" in reply.message


@pytest.mark.real_model
async def test_a_broken_file_is_told_in_every_api_and_harms_no_other(default_model_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    await asyncio.to_thread(_cut, default_model_path, folder / "cut.gguf")
    settings: dict[str, Any] = {"profile": "hub", "host": "127.0.0.1", "mdns": False, "auth": "off"}
    settings["model_folders"] = (str(folder),)
    async with (
        serving_real(tmp_path / "home", default_model_path, **settings) as served,
        served.running.session() as http,
    ):
        replies = [await ask_api(http, api, question(api, model="cut")) for api in PATHS]
        async with http.get("/v1/models") as response:
            listed = [model["id"] for model in (await response.json())["data"]]

    for reply in replies:
        assert reply.status == 404, reply.body
        assert "cut.gguf is cut short: 1,000,000 bytes" in reply.message
        assert str(tmp_path) not in reply.message
    assert "cut" not in listed
    assert listed


MISTYPED = {
    "/v1/v1/messages": "",
    "/v1/messages/": "",
    "/v1/api/chat": "",
    "/api/chat/": "",
    "/v1/v1/chat/completions": "/v1",
    "/chat/completions": "/v1",
}


@pytest.mark.parametrize("path", MISTYPED)
async def test_a_mistyped_path_is_told_the_base_url_of_its_own_clients(
    hub: Running, http: aiohttp.ClientSession, path: str
) -> None:
    async with http.post(path, json={}) as response:
        said = await response.text()

    assert response.status == 404
    assert f"The base URL for clients is {hub.server.base_url.removesuffix('/v1')}{MISTYPED[path]}." in said


def _cut(whole: Path, target: Path) -> None:
    with whole.open("rb") as source:
        target.write_bytes(source.read(1_000_000))


def _base64(*pieces: bytes) -> list[str]:
    return [base64.b64encode(piece).decode() for piece in pieces]
