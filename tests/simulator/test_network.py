"""The device's network as clients meet it: refused, silent, reset, and back on the same port."""

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.simulator.driving import CHAT, HI, Device, device
from tests.waiting import until

LONG = {"prose_tokens": 5000}


async def health(phone: Device, seconds: float = 20.0) -> str:
    """What a stranger's new connection meets: a status, or how it failed."""
    try:
        async with asyncio.timeout(seconds), aiohttp.ClientSession(base_url=phone.served.origin) as stranger:
            async with stranger.get("/health") as response:
                return str(response.status)
    except TimeoutError:
        return "silence"
    except aiohttp.ClientConnectorError:
        return "refused"
    except (aiohttp.ClientError, ConnectionError):
        return "reset"


@pytest.mark.parametrize(
    ("state", "meets"),
    [
        ({"network": "gone"}, "refused"),
        ({"network": "silent"}, "silence"),
        ({"app": "background"}, "refused"),
        ({"app": "locked"}, "silence"),
        ({"app": "killed"}, "refused"),
    ],
)
async def test_a_new_client_meets_the_state_and_the_port_comes_back(
    phone: Device, state: dict[str, Any], meets: str
) -> None:
    await phone.control("PATCH", "/state", state)
    assert await health(phone, 0.2 if meets == "silence" else 20.0) == meets

    await phone.control("PATCH", "/state", {"network": "up", "app": "foreground"})
    assert await health(phone) == "200"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has every 127.x.x.x")
async def test_a_new_address_is_the_only_one(phone: Device) -> None:
    old, new = phone.served.origin, phone.served.origin.replace("127.0.0.1", "127.0.0.2")
    await phone.control("PATCH", "/state", {"address": "127.0.0.2"})
    assert await health(phone) == "refused"
    async with aiohttp.ClientSession(base_url=new) as http, http.get("/health") as response:
        assert response.status == 200

    await phone.control("PATCH", "/state", {"address": None})
    async with aiohttp.ClientSession(base_url=old) as http, http.get("/health") as response:
        assert response.status == 200


async def test_an_address_of_somebody_else_is_refused(phone: Device) -> None:
    answer = await phone.control("PATCH", "/state", {"address": "192.0.2.7"}, status=400)

    assert "192.0.2.7" in answer["error"]
    assert await health(phone) == "200"


async def test_leaving_and_coming_back_many_times_ends_in_the_last_state(phone: Device) -> None:
    for _ in range(20):
        phone.simulator.set_state(network="gone")
        phone.simulator.set_state(network="up")
    await phone.simulator.settled()
    assert await health(phone) == "200"

    phone.simulator.set_state(network="gone")
    await phone.simulator.settled()
    assert await health(phone) == "refused"


async def test_a_stream_falls_silent_in_the_background_and_is_reset(tmp_path: Path) -> None:
    async with device(tmp_path, speed=1.0, tokens_per_second=200) as phone:
        phone.simulator.add_rule(LONG)
        streaming = asyncio.create_task(phone.raw(stream=True))
        await until(lambda: phone.engine.running == 1)

        await phone.control("PATCH", "/state", {"app": "background", "grace_seconds": 0.1})
        received = await streaming

        assert received.startswith(b"HTTP/1.1 200")
        assert received.endswith(b"RESET")
        await until(lambda: phone.engine.running == 0)
        await phone.control("PATCH", "/state", {"app": "foreground"})
        phone.simulator.remove_rule()
        assert await phone.text(max_tokens=1)


async def test_a_silent_network_that_comes_back_delivers_what_waited(tmp_path: Path) -> None:
    async with device(tmp_path, speed=1.0, tokens_per_second=200) as phone:
        phone.simulator.add_rule({"prose_tokens": 60})
        async with phone.http.post(CHAT, json={**HI, "stream": True}) as response:
            await phone.control("PATCH", "/state", {"network": "silent"})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    while True:
                        await response.content.readany()
            await phone.control("PATCH", "/state", {"network": "up"})
            rest = await response.content.read()

        assert rest.endswith(b"data: [DONE]\n\n")


async def test_a_killed_app_resets_streams_and_comes_back_without_a_model(tmp_path: Path) -> None:
    async with device(tmp_path, speed=1.0, tokens_per_second=20) as phone:
        streaming = asyncio.create_task(phone.raw(stream=True))
        await until(lambda: phone.engine.running == 1)

        await phone.control("PATCH", "/state", {"app": "killed"})

        assert (await streaming).endswith(b"RESET")
        await phone.control("PATCH", "/state", {"app": "foreground"})
        status, document = await phone.ask()
        assert (status, document["error"]["code"]) == (503, "model_not_loaded")


async def test_health_shows_the_device(phone: Device) -> None:
    await phone.control("PATCH", "/state", {"thermal": "serious", "low_power": True, "battery": 17})

    async with aiohttp.ClientSession(base_url=phone.served.origin) as stranger, stranger.get("/health") as response:
        shown = (await response.json())["x_pocketserver"]["device"]

    assert (shown["thermal"], shown["low_power"], shown["battery"]) == ("serious", True, 17)
    assert shown["available_memory_bytes"] > 0
