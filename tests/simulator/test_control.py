"""The control listener's simulator routes: their words, what they show, and what they hide."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.simulator.driving import CHAT, HI, Device, device
from tests.waiting import until


async def test_a_rule_answers_what_matches_so_often(phone: Device) -> None:
    reply = {"reply": {"text": "Sunny."}, "match": {"last_message": "weather"}, "times": 1}
    assert (await phone.control("POST", "/rules", reply))["id"] == "rule-1"
    weather = [{"role": "user", "content": "How is the weather?"}]

    assert await phone.text() != "Sunny."
    assert await phone.text(messages=weather) == "Sunny."
    assert await phone.text(messages=weather) != "Sunny."


async def test_a_rule_or_fault_is_taken_away_by_its_id(phone: Device) -> None:
    rule = (await phone.control("POST", "/rules", {"reply": {"text": "no"}}))["id"]
    fault = (await phone.control("POST", "/faults", {"fault": "model_busy"}))["id"]

    assert await phone.control("DELETE", f"/rules/{rule}") == {"removed": True}
    assert await phone.control("DELETE", f"/faults/{fault}") == {"removed": True}
    assert await phone.control("DELETE", "/faults/fault-99", status=404) == {"removed": False}
    assert await phone.text() != "no"


async def test_requests_show_bodies_and_timings_and_no_key(phone: Device) -> None:
    await phone.ask(user="me")
    await phone.ask(stream=False, temperature=9)

    shown = await phone.control("GET", "/requests")
    first, second = shown["requests"]

    assert phone.served.key not in json.dumps(shown)
    assert first["headers"]["Authorization"] == "Bearer ***"
    assert first["json"]["user"] == "me"
    assert (first["status"], first["error"], first["tokens"]) == (200, None, 40)
    assert first["seconds"] >= first["time_to_first_token"] >= 0
    assert (second["status"], second["error"]) == (400, "invalid_parameter")
    assert len((await phone.control("GET", "/requests?last=1"))["requests"]) == 1


@pytest.mark.parametrize("faulty", [False, True], ids=["no fault", "a fault for others"])
async def test_bodies_are_shown_whole_however_they_came(phone: Device, faulty: bool) -> None:
    if faulty:  # then a body is read before its handler asks for it
        await phone.control("POST", "/faults", {"fault": "model_busy", "when": {"match": {"path": "/other"}}})
    body = json.dumps({**HI, "user": "u" * 300}).encode()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 100):
            yield body[start : start + 100]
            await asyncio.sleep(0)

    for data in (body, pieces()):
        async with phone.http.post(CHAT, data=data) as response:
            assert response.status == 200, await response.text()

    assert [request.body for request in phone.simulator.requests] == [body, body]


async def test_only_the_latest_thousand_requests_are_kept(phone: Device) -> None:
    for number in range(1002):
        phone.simulator.ended(phone.simulator.arrived("GET", f"/{number}", {}, str(number)).id, 200, None, 0.0)

    assert len(phone.simulator.requests) == 1000
    assert phone.simulator.requests[0].path == "/2"


async def test_reset_puts_everything_back(phone: Device) -> None:
    await phone.control("PATCH", "/state", {"thermal": "critical", "app": "locked", "memory_limit_bytes": 1})
    await phone.control("POST", "/faults", {"fault": "model_busy", "when": {"every": 1}})
    await phone.control("POST", "/rules", {"reply": {"text": "no"}})
    await phone.control("POST", "/reset")

    state = await phone.control("GET", "/state")
    assert (state["thermal"], state["app"], state["faults"], state["rules"]) == ("nominal", "foreground", [], [])
    assert phone.simulator.requests == []
    assert await phone.text() != "no"


@pytest.mark.parametrize(
    ("method", "path", "body", "hint"),
    [
        ("PATCH", "/state", {"thermal": "hot"}, "hot"),
        ("PATCH", "/state", {"termal": "serious"}, "termal"),
        ("PATCH", "/state", {"model": "no-such"}, "sim-1b"),
        ("PATCH", "/state", {"battery": 101}, "battery"),
        ("POST", "/rules", {"reply": {"text": "a", "echo": True}}, "one of"),
        ("POST", "/rules", {"reply": {}, "match": {"regex": "("}}, "regular expression"),
        ("POST", "/rules", {"reply": {"tokens": [{"base64": "?"}]}}, "base64"),
        ("POST", "/advance", {"seconds": -1}, "seconds"),
        ("POST", "/scenario", {}, "name"),
        ("GET", "/requests?last=x", None, "number"),
    ],
)
async def test_wrong_words_are_a_400_that_names_them(
    phone: Device, method: str, path: str, body: Any, hint: str
) -> None:
    assert hint in (await phone.control(method, path, body, status=400))["error"]


async def test_a_refused_change_changes_nothing(phone: Device) -> None:
    await phone.control("PATCH", "/state", {"thermal": "serious", "model": "no-such"}, status=400)

    assert (await phone.control("GET", "/state"))["thermal"] == "nominal"


async def test_events_come_as_they_happen(phone: Device) -> None:
    seen: list[Any] = []

    async def watch() -> None:
        async with phone.owner.get("/events") as response:
            while line := await response.content.readline():
                seen.extend(json.loads(data) for data in [line.removeprefix(b"data: ").strip()] if data)

    watching = asyncio.create_task(watch())
    await phone.control("PATCH", "/state", {"thermal": "fair"})
    await phone.control("POST", "/faults", {"fault": "model_busy"})
    await phone.ask()
    await until(lambda: len(seen) == 3)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)

    assert [event["event"] for event in seen] == ["state", "fault", "request"]
    assert [event["number"] for event in seen] == [1, 2, 3]
    assert seen[2]["error"] == "model_busy"


async def test_the_routes_ask_for_the_control_token(phone: Device) -> None:
    url = phone.served.server.control_url
    async with aiohttp.ClientSession(base_url=url, headers=phone.served.headers) as stranger:
        for path in ("/state", "/requests", "/events", "/verdict"):
            async with stranger.get(path) as response:
                assert response.status == 401


async def test_a_port_of_the_model_server_knows_no_control(phone: Device) -> None:
    async with phone.http.get("/state") as response:
        assert response.status == 404


async def test_time_passes_on_demand_and_a_hot_phone_cools_down(tmp_path: Path) -> None:
    async with device(tmp_path, device="iphone-15-pro") as phone:
        phone.simulator.add_rule({"prose_tokens": 4000})
        await phone.ask(max_tokens=4000)
        assert (await phone.control("GET", "/state"))["thermal"] == "serious"

        state = await phone.control("POST", "/advance", {"seconds": 900})

    assert state["thermal"] == "nominal"


async def test_two_devices_in_one_process_do_not_mix(tmp_path: Path) -> None:
    async with device(tmp_path / "a") as one, device(tmp_path / "b") as other:
        one.simulator.add_fault("model_busy")

        assert (await other.ask())[0] == 200
        assert (await one.ask())[0] == 429
