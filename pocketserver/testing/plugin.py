"""The pytest plugin: fixtures `pocketserver` and `pocketserver_factory`. It imports nothing heavy until one is used."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pocketserver.testing.background import Background
    from pocketserver.testing.device import SimulatedServer


@pytest.fixture(scope="session")
def _pocketserver_background() -> "Iterator[Background]":
    """The event loop that all simulators of a test run share, in a thread of its own."""
    from pocketserver.testing.background import Background

    with Background() as background:
        yield background


@pytest.fixture
def pocketserver_factory(
    _pocketserver_background: "Background", tmp_path: "Path"
) -> "Iterator[Callable[..., SimulatedServer]]":
    """Makes simulators: `pocketserver_factory(device="iphone-16-pro", scenario="flaky-wifi", speed="max", …)`.

    Every setting of `pocketserver serve` is an argument. They end with the test.
    """
    from pocketserver.testing.device import SimulatedServer

    started: list[SimulatedServer] = []

    def make(**settings: object) -> SimulatedServer:
        home = tmp_path / f"pocketserver-{len(started)}"
        started.append(SimulatedServer.start(_pocketserver_background, home, settings))
        return started[-1]

    yield make
    for server in reversed(started):
        server.close()


@pytest.fixture
def pocketserver(pocketserver_factory: "Callable[..., SimulatedServer]") -> "SimulatedServer":
    """A fresh simulated device on a free loopback port, without delays."""
    return pocketserver_factory()
