"""What every test may use: the real default model, fetched once into a folder that outlives the run."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pocketserver.models.pull import ensure_default_model

CACHE = Path(__file__).resolve().parent.parent / ".test-home"


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The default model's file; the first run fetches it as `pocketserver models pull` does."""
    # in a thread, since a test that asks for it may have a loop of its own running
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, ensure_default_model(CACHE / "models")).result()
