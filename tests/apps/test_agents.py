"""Coding agents as clients: Claude Code and Codex, from their npm packages."""

import sys
from pathlib import Path

import pytest

from tests.apps.environments import FOLDER, packages_of
from tests.apps.suites import run_pytest

AGENTS = FOLDER / "agents"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "suite"), [("Claude Code", "claude_code.py"), ("Codex", "codex.py")])
def test_the_simulator_passes(pytestconfig: pytest.Config, name: str, suite: str) -> None:
    packages = str(packages_of(AGENTS))
    run_pytest(pytestconfig, name, Path(sys.executable), AGENTS, suite, POCKETSERVER_TEST_PACKAGES=packages)
