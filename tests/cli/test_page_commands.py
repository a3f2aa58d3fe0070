"""`pocketserver page` and `pocketserver pair`, asked of a running server as a person asks them."""

import asyncio
import json
import os
import re
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.serving import Running, running
from tests.waiting import until


async def command(home: Path, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pocketserver.cli.main", *arguments),
        env={**os.environ, "POCKETSERVER_HOME": str(home)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await started.communicate()
    return started.returncode or 0, out.decode(), err.decode()


async def paired(server: Running, code: str) -> dict[str, str]:
    async with aiohttp.ClientSession(server.origin) as http:
        async with http.post("/page/pair", json={"code": code, "name": "phone"}) as response:
            answer: dict[str, str] = await response.json()
            return answer


async def test_page_prints_a_link_that_opens_the_page_as_its_owners_once(tmp_path: Path) -> None:
    async with running(tmp_path) as server, aiohttp.ClientSession(server.origin) as http:
        code, out, err = await command(tmp_path, "page")
        token = out.strip().partition("#owner=")[2]
        async with http.post("/page/owner", json={"token": token}) as response:
            assert response.status == 200

    assert code == 0
    assert out.startswith(f"{server.origin}/#owner=")
    assert "works once" in err


async def test_pair_prints_the_link_and_the_digits_of_one_code(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        code, out, err = await command(tmp_path, "pair")
        digits = re.search(r"^Code: (\d{6})$", out, re.MULTILINE)
        assert digits
        answer = await paired(server, digits[1])

    assert code == 0
    assert f"{server.origin}/#pair={digits[1]}\n" in out
    assert "120 seconds" in err
    assert "this machine only" in err
    assert answer["name"] == "phone"


async def test_pair_draws_the_code_when_asked_and_writes_json_for_programs(tmp_path: Path) -> None:
    async with running(tmp_path):
        _, drawn, _ = await command(tmp_path, "pair", "--style", "ascii")
        _, document, _ = await command(tmp_path, "pair", "--json")

    assert "##" in drawn
    assert set(json.loads(document)) == {"code", "url", "seconds"}


async def test_pair_waits_and_tells_which_key_it_became(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        desk = server.server.page.pairing  # type: ignore[union-attr]
        waiting = asyncio.create_task(command(tmp_path, "pair", "--wait"))
        await until(lambda: desk.shown() is not None)
        assert desk._offer is not None
        await paired(server, desk._offer.code)
        code, out, _ = await waiting

    assert code == 0
    assert "Paired: the key 'phone'" in out


async def test_pair_says_when_its_code_is_void(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        desk = server.server.page.pairing  # type: ignore[union-attr]
        waiting = asyncio.create_task(command(tmp_path, "pair", "--wait"))
        await until(lambda: desk.shown() is not None)
        for _ in range(5):
            await paired(server, "wrong")
        code, _, err = await waiting

    assert code == 1
    assert "void" in err


async def test_pair_does_not_take_the_use_of_a_later_code_for_its_own(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        desk = server.server.page.pairing  # type: ignore[union-attr]
        waiting = asyncio.create_task(command(tmp_path, "pair", "--wait"))
        await until(lambda: desk.shown() is not None)
        await paired(server, desk.offer())
        code, _, err = await waiting

    assert code == 1
    assert "Another code was made" in err


@pytest.mark.parametrize(
    ("settings", "arguments", "words"),
    [
        ({"page": False}, ["page"], "no page"),
        ({"profile": "pooled"}, ["pair"], "no page"),
        ({"auth": "off"}, ["pair"], "no key"),
    ],
)
async def test_what_cannot_be_is_one_line(
    tmp_path: Path, settings: dict[str, object], arguments: list[str], words: str
) -> None:
    async with running(tmp_path, **settings):
        code, out, err = await command(tmp_path, *arguments)

    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
