"""LiteLLM as a client of three APIs."""

import pytest

from tests.apps.environments import FOLDER, python_of
from tests.apps.suites import run_pytest

LITELLM = FOLDER / "litellm"


@pytest.mark.timeout(600)
def test_the_simulator_passes(pytestconfig: pytest.Config) -> None:
    run_pytest(pytestconfig, "LiteLLM", python_of(LITELLM), LITELLM, "client.py")
