"""A host and its guests on loopback, over the simulator: what each of them sees of the other."""

from pathlib import Path

from pocketserver.room.finding import at
from tests.room.rooming import CODE, hosting, joining, linked


async def test_a_guest_answers_with_the_hosts_model(tmp_path: Path) -> None:
    async with hosting(tmp_path / "host") as host, joining(tmp_path / "guest", at(host.url), host.key) as guest:
        await linked(guest)
        async with guest.running.session() as client:
            body = {"model": "pooled/sim-1b", "messages": [{"role": "user", "content": "hi"}]}
            async with client.post("/v1/chat/completions", json=body) as response:
                print(response.status, await response.text())
                assert response.status == 200
        assert await guest.health() == {
            "ok": True, "room": CODE, "connected": True, "ready": True, "model": "pooled/sim-1b", "ctx": 8192,
            "queue": 0, "served": 1,
        }  # fmt: skip
        assert [one.name for one in host.room.guests()] == ["laptop"]
        assert host.room.guests()[0].served == 1
