"""Vercel's AI SDK as a client, over each API that it has a provider for."""

import pytest

from tests.apps.environments import FOLDER, packages_of
from tests.apps.suites import run_node

VERCEL = FOLDER / "vercel"


@pytest.mark.timeout(600)
def test_the_simulator_passes(pytestconfig: pytest.Config) -> None:
    packages_of(VERCEL)
    run_node(pytestconfig, "Vercel AI SDK", VERCEL)
