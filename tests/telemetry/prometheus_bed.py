"""A real Prometheus on loopback, in a folder of its own, for tests that want to know whether a scrape works."""

import asyncio
import os
import shutil
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

_STARTS_WITHIN_SECONDS = 60.0


def need(tool: str) -> str:
    """The path of a system tool; without it the test is skipped, except in CI, where it fails."""
    found = shutil.which(tool)
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{tool} is not installed (Debian: prometheus)")
    assert found is not None
    return found


def scrape_config(target: str, key: str, folder: Path, *, interval_seconds: float = 0.5) -> str:
    """A configuration as the documentation shows it: a bearer token in a file of its own."""
    token = folder / "pocketserver.token"
    token.write_text(key + "\n")
    return f"""
global:
  scrape_interval: {int(interval_seconds * 1000)}ms
  scrape_timeout: {int(interval_seconds * 1000)}ms
scrape_configs:
  - job_name: pocketserver
    metrics_path: /metrics
    authorization:
      credentials_file: {token}
    static_configs:
      - targets: ["{target}"]
"""


class Prometheus:
    """The HTTP API of a running Prometheus."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """The instant vector of a PromQL expression: entries with `metric` and `value`."""
        async with self._session.get(f"{self._url}/api/v1/query", params={"query": expression}) as answer:
            document = await answer.json()
        assert document["status"] == "success", document
        result: list[dict[str, Any]] = document["data"]["result"]
        return result

    async def value(self, expression: str) -> float | None:
        """The value of the one series that an expression gives; None while there is none."""
        series = await self.query(expression)
        return float(series[0]["value"][1]) if series else None

    async def until(self, expression: str, wanted: float, limit: float = 60.0) -> None:
        """Ask until the expression has the wanted value."""
        deadline = time.monotonic() + limit
        while (seen := await self.value(expression)) != wanted:
            if time.monotonic() > deadline:
                pytest.fail(f"{expression} was {seen}, not {wanted}; targets: {await self.targets()}")
            await asyncio.sleep(0.1)

    async def targets(self) -> list[dict[str, Any]]:
        """Health and last error of each target."""
        async with self._session.get(f"{self._url}/api/v1/targets") as answer:
            document = await answer.json()
        targets: list[dict[str, Any]] = document["data"]["activeTargets"]
        return targets

    async def is_ready(self) -> bool:
        try:
            async with self._session.get(f"{self._url}/-/ready") as answer:
                return answer.status == 200
        except aiohttp.ClientConnectionError:
            return False


@asynccontextmanager
async def prometheus(config: str, folder: Path) -> AsyncIterator[Prometheus]:
    """Run Prometheus with this configuration for as long as the block lasts."""
    program = need("prometheus")
    (folder / "prometheus.yml").write_text(config)
    address = f"127.0.0.1:{_free_port()}"
    log = (folder / "prometheus.log").open("wb")
    process = await asyncio.create_subprocess_exec(
        program, *_arguments(folder, address), stdout=log, stderr=log, stdin=asyncio.subprocess.DEVNULL
    )
    try:
        async with aiohttp.ClientSession() as session:
            running = Prometheus(f"http://{address}", session)
            await _until_ready(running, process, folder)
            yield running
    finally:
        log.close()
        if process.returncode is None:
            process.kill()
        await process.wait()


def _arguments(folder: Path, address: str) -> Sequence[str]:
    return (
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    )


async def _until_ready(running: Prometheus, process: asyncio.subprocess.Process, folder: Path) -> None:
    async with asyncio.timeout(_STARTS_WITHIN_SECONDS):
        while not await running.is_ready():
            assert process.returncode is None, (folder / "prometheus.log").read_text()
            await asyncio.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
