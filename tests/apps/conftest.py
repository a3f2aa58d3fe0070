"""The summary of what the applications' own runners counted."""

from collections import Counter

import pytest

from tests.apps.suites import COUNTS

collect_ignore = ["agents", "langchain", "litellm", "shared", "vercel"]
"""These run in environments of their own."""


def pytest_configure(config: pytest.Config) -> None:
    config.stash[COUNTS] = {}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    counts: dict[str, Counter[str]] = config.stash[COUNTS]
    if counts:
        terminalreporter.section("applications as clients")
        for name, counted in counts.items():
            terminalreporter.line(f"{name}: " + ", ".join(f"{number} {word}" for word, number in counted.items()))
