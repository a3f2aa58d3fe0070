"""A fresh server and a fresh home for each test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from desk import Desk
from server_process import simulating


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Callable[[int], Desk]]:
    """Makes a desk whose server has this much context."""
    with ExitStack() as stack:

        def make(context: int) -> Desk:
            home, work = tmp_path / "home", tmp_path / "work"
            home.mkdir()
            work.mkdir()
            return Desk(stack.enter_context(simulating("--context", str(context))), home, work)

        yield make
