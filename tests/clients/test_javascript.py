"""The official npm packages against the simulator; the tests themselves are JavaScript and lie beside this."""

import re
import sys
from pathlib import Path

from tests.tools import install_packages, run

FOLDER = Path(__file__).parent / "javascript"


def test_the_javascript_sdks_do_with_each_fault_what_their_documentation_says() -> None:
    install_packages(FOLDER)

    said = run(["node", "--test", "--test-reporter=tap"], FOLDER, POCKETSERVER_TEST_PYTHON=sys.executable)

    passed = re.search(r"^# pass (\d+)$", said, re.MULTILINE)
    assert passed, said
    assert int(passed[1]) >= 130
    assert "\n# fail 0\n" in said
