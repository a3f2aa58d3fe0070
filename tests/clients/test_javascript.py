"""The official npm packages as clients; the tests themselves are JavaScript and lie beside this."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.clients.engines import TEMPLATES
from tests.engines.upstream.processes import process
from tests.tools import install_packages, run

FOLDER = Path(__file__).parent / "javascript"


def test_the_javascript_sdks_do_with_each_fault_what_their_documentation_says() -> None:
    install_packages(FOLDER)

    said = run(["node", "--test", "--test-reporter=tap"], FOLDER, POCKETSERVER_TEST_PYTHON=sys.executable)

    passed = re.search(r"^# pass (\d+)$", said, re.MULTILINE)
    assert passed, said
    assert int(passed[1]) >= 130
    assert "\n# fail 0\n" in said


@pytest.mark.parametrize("engine", ["sim", pytest.param("llama", marks=pytest.mark.real_model)])
def test_the_three_packages_go_through_one_list_of_scenarios_on_each_engine(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    install_packages(FOLDER)
    options = ["--engine", "sim", "--speed", "max"]
    if engine == "llama":
        model = request.getfixturevalue("default_model_path")
        options = ["--model", str(model), "--chat-template", str(TEMPLATES / "tags.jinja"), "--tuning", "off"]
    words = [
        "-m",
        "pocketserver.cli.main",
        "serve",
        "--profile",
        "hub",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--no-mdns",
    ]
    words += ["--context", "2048", "--home", str(tmp_path), "--ready-json", "-", "--exit-on-stdin-close", *options]
    with process(*words) as server:
        ready = json.dumps(server.ready)
        said = run(["node", "--test", "--test-reporter=tap", "scenarios.js"], FOLDER, POCKETSERVER_TEST_SERVER=ready)

    passed = re.search(r"^# pass (\d+)$", said, re.MULTILINE)
    assert passed, said
    assert int(passed[1]) >= 20
    assert "\n# fail 0\n" in said
