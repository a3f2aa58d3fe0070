"""A real Prometheus scrapes a running server with a metrics key; promtool has nothing to say about the text."""

import asyncio
import subprocess
from pathlib import Path
from typing import Any

from tests.serving import running
from tests.telemetry.prometheus_bed import need, prometheus, scrape_config

HI: dict[str, Any] = {"model": "default", "messages": [{"role": "user", "content": "hi"}]}
TOKENS = "sum(pocketserver_generated_tokens_total)"


async def test_a_scrape_with_a_metrics_key_is_up_and_the_token_counter_grows(tmp_path: Path) -> None:
    folder = tmp_path / "prometheus"
    folder.mkdir()
    async with running(tmp_path / "home") as server:
        assert server.server.keys is not None
        key = await asyncio.to_thread(server.server.keys.new, "prometheus", ["metrics"])
        config = scrape_config(f"127.0.0.1:{server.server.port}", key, folder)
        async with prometheus(config, folder) as scraper, server.session() as http:
            await scraper.until("up", 1)
            await scraper.until(TOKENS, 0)
            for _ in range(3):
                async with http.post("/v1/chat/completions", json=HI) as response:
                    assert response.status == 200
            await scraper.until(TOKENS, 120)
            await scraper.until("pocketserver_last_request_generated_tokens", 40)
            await scraper.until('pocketserver_requests_total{code="200",route="/v1/chat/completions"}', 3)


async def test_a_scrape_without_the_key_is_down(tmp_path: Path) -> None:
    folder = tmp_path / "prometheus"
    folder.mkdir()
    async with running(tmp_path / "home") as server:
        config = scrape_config(f"127.0.0.1:{server.server.port}", "sk-wrong", folder)
        async with prometheus(config, folder) as scraper:
            await scraper.until("up", 0)


async def test_promtool_is_silent_about_a_used_server(tmp_path: Path) -> None:
    promtool = need("promtool")
    async with running(tmp_path) as server, server.session() as http:
        for body in (HI, {**HI, "stream": True}, {**HI, "n": 0}):
            async with http.post("/v1/chat/completions", json=body) as response:
                await response.read()
        async with http.get("/metrics", headers={"Accept": "text/plain"}) as response:
            text = await response.read()

    checked = await asyncio.to_thread(
        subprocess.run, [promtool, "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


async def test_the_content_type_is_exactly_what_prometheus_three_asks_for(tmp_path: Path) -> None:
    async with running(tmp_path) as server, server.session() as http:
        async with http.get("/metrics", headers={"Accept": "*/*"}) as response:
            assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        accept = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.25"
        async with http.get("/metrics", headers={"Accept": accept}) as response:
            assert response.headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
            assert (await response.text()).endswith("# EOF\n")
        async with http.head("/metrics") as response:
            assert response.status == 200
