"""One browser for all tests of a module."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest_asyncio

from tests.page.browsing import chromium

if TYPE_CHECKING:
    from playwright.async_api import Browser


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator["Browser"]:
    async with chromium() as opened:
        yield opened
