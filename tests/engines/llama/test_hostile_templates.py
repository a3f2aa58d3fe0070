"""A thousand hostile templates: each ends in a clear refusal or in a prompt of bounded size."""

import json
import subprocess
import sys

from pocketserver.engines.llama.sandbox import OUTPUT_CHARACTERS

DEADLINE_SECONDS = 200
"""Some twenty times what it takes; a template that hangs is what ends here."""


def test_a_thousand_hostile_templates_end_in_a_refusal_or_a_bounded_prompt() -> None:
    program = [sys.executable, "-m", "tests.engines.llama.hostile_templates", "1000", "7", "0.01"]
    finished = subprocess.run(program, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
    assert finished.returncode == 0, finished.stderr[-2000:]

    *outcomes, memory = map(json.loads, finished.stdout.splitlines())

    assert len(outcomes) == 1000
    assert {found["code"] for found in outcomes if "code" in found} == {"template_unsupported"}
    assert all(len(found["message"]) < 900 for found in outcomes if "code" in found)
    assert all(found["length"] <= OUTPUT_CHARACTERS and not found["leak"] for found in outcomes if "length" in found)
    assert memory["peak_kib"] < 600 * 1024
