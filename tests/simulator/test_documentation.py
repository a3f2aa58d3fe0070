"""What docs/simulator.md shows runs, and its lists are whole."""

import re
import subprocess
import sys
from pathlib import Path

from pocketserver.profile import profile_names
from pocketserver.simulator.scenario import scenario_names
from pocketserver.simulator.words import StateChange

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "simulator.md").read_text(encoding="utf-8")


def test_its_client_test_passes(tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "test_client.py").write_text(code)
    command = [sys.executable, "-W", "ignore", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_client.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    assert "1 passed" in ran.stdout, ran.stdout


def test_it_names_every_scenario_profile_and_state_word() -> None:
    rows = set(re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE))
    assert rows == set(scenario_names())
    for word in (*profile_names(), *StateChange.__struct_fields__):
        assert f"`{word}`" in PAGE, word
