"""One fresh device a test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.simulator.driving import Device, device


@pytest_asyncio.fixture
async def phone(tmp_path: Path) -> AsyncIterator[Device]:
    async with device(tmp_path) as started:
        yield started
