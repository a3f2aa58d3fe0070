"""The test bed as a fixture. Without namespaces or a tool, tests skip with the reason; where CI is set they fail."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lan.bed import LanBed


@pytest.fixture(scope="session")
def lan_possible() -> None:
    reason = LanBed.why_not()
    if reason and os.environ.get("CI"):
        pytest.fail(f"The LAN test bed is needed in CI: {reason}")
    if reason:
        pytest.skip(f"The LAN test bed needs Linux and root: {reason}")


@pytest.fixture
def lan_bed(lan_possible: None, tmp_path: Path) -> Iterator[LanBed]:
    """An empty bridge; put machines on it with `lan_bed.machine("10.77.0.1/24")`."""
    with LanBed(tmp_path) as bed:
        yield bed


@pytest.fixture(scope="session")
def zbarimg() -> str:
    """The program that reads codes from pictures."""
    found = shutil.which("zbarimg")
    if found is None and os.environ.get("CI"):
        pytest.fail("zbarimg is needed in CI (Debian: zbar-tools)")
    if found is None:
        pytest.skip("zbarimg is not installed (Debian: zbar-tools)")
    return found
