"""Every query of the example's dashboard is answered, through a real Prometheus, by servers that work."""

import asyncio
import json
import re
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from pocketserver.engines.llama.process import LlamaEngine, LlamaOptions
from tests.engines.upstream.gateway import in_front_of
from tests.examples.prometheus_example import FOLDER, KEY, prepared
from tests.serving import Running, running
from tests.telemetry.prometheus_bed import Prometheus, need, prometheus

DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "Count to three."}], "max_tokens": 8}
VARIABLES = {"$job": "pocketserver", "$instance": ".*", "$__rate_interval": "4s"}


def queries() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def filled_in(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def test_panels_have_numbers_places_and_a_source_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [cell for panel in panels for cell in cells(panel["gridPos"])]
    assert len(taken) == len(set(taken)), "two panels lie over one another"
    for panel in panels:
        assert panel["title"]
        assert panel["description"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def cells(place: dict[str, int]) -> Iterator[tuple[int, int]]:
    assert place["x"] + place["w"] <= 24
    for x in range(place["x"], place["x"] + place["w"]):
        for y in range(place["y"], place["y"] + place["h"]):
            yield x, y


def test_queries_use_the_variables_that_the_dashboard_has() -> None:
    names = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert names == {"datasource", "job", "instance"}
    for title, expression in queries():
        assert set(re.findall(r"\$(\w+)", expression)) <= names | {"__rate_interval"}, title


@pytest.mark.real_model
async def test_every_query_is_answered(tmp_path: Path, default_model_path: Path) -> None:
    need("prometheus")
    folder = tmp_path / "prometheus"
    folder.mkdir()
    options = LlamaOptions(
        model_id="smollm2-135m-instruct",
        path=default_model_path,
        state_folder=tmp_path / "llama",
        context=512,
        threads=1,
    )
    async with AsyncExitStack() as stack:
        engine = LlamaEngine(options)
        model = await stack.enter_async_context(running(tmp_path / "model", engine, api_key=KEY))
        await engine.loaded()
        door = await stack.enter_async_context(
            in_front_of(tmp_path / "door", f"{model.origin}/v1", key=KEY, api_key=KEY)
        )
        addresses = [f"127.0.0.1:{server.server.port}" for server in (model, door)]
        scraper = await stack.enter_async_context(prometheus(prepared(folder, *addresses), folder))
        asking = asyncio.gather(keep_asking(door), keep_asking(door))
        try:
            for title, expression in queries():
                await answered(scraper, title, filled_in(expression))
        finally:
            asking.cancel()


async def keep_asking(server: Running) -> None:
    """Through the server in front, so that both have something to tell; two of these let requests wait."""
    async with server.session() as http:
        while True:
            async with http.post("/v1/chat/completions", json=BODY) as answer:
                assert answer.status == 200, await answer.text()


async def answered(scraper: Prometheus, title: str, expression: str) -> None:
    """Numbers, not only a series that says NaN."""
    deadline = time.monotonic() + 60
    while not any(entry["value"][1] != "NaN" for entry in await scraper.query(expression)):
        assert time.monotonic() < deadline, f"{title}: nothing answers {expression}"
        await asyncio.sleep(0.2)
