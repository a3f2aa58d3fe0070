"""schemathesis sends what each profile's API document allows, and what it does not, to a simulator of that profile.

No request may fail inside the server, and no answer may differ from what the document says.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pocketserver.openapi import document
from pocketserver.profile import load_profile, profile_names
from tests.apps.environments import FOLDER, python_of
from tests.test_serve_command import Started

FUZZ = FOLDER / "fuzz"
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "allow_header_conformance",
    "missing_required_header",
)
ABOUT_THE_STORE = ("CopyBody", "CreateBody", "NameBody", "PullBody")
"""Bodies that name models to be made or removed: any name will do, and the one in memory had better stay."""
_MOST_SECONDS = 25
_EXAMPLES = 30


@pytest.mark.timeout(240)
@pytest.mark.parametrize("profile", profile_names())
def test_nothing_that_is_sent_breaks_the_server_or_its_document(profile: str, tmp_path: Path) -> None:
    python = python_of(FUZZ)
    server = Started(tmp_path, "--profile", profile)
    try:
        path = tmp_path / "api.json"
        path.write_text(json.dumps(asking_for(server.ready["model"], document(load_profile(profile)))))
        done = subprocess.run(
            [str(python), "-m", "schemathesis.cli", *arguments(path, server)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    finally:
        server.process.terminate()
        server.finish()

    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]


def arguments(path: Path, server: Started) -> list[str]:
    url = server.ready["base_url"].removesuffix("/v1")
    key = [f"--header=Authorization: Bearer {server.ready['api_key']}"] if server.ready["api_key"] else []
    limits = [f"--max-examples={_EXAMPLES}", f"--max-time={_MOST_SECONDS}", "--seed=1", "--request-timeout=20"]
    shown = ["--no-color", "--warnings=off", "--continue-on-failure", "--suppress-health-check=all"]
    phases = "--phases=examples,coverage,fuzzing"
    return ["run", str(path), f"--url={url}", *key, *limits, *shown, phases, f"--checks={','.join(CHECKS)}"]


def asking_for(model: str, described: dict[str, Any]) -> dict[str, Any]:
    """The same document in which every request to a model names one that is there."""
    for name, schema in described["components"]["schemas"].items():
        if name not in ABOUT_THE_STORE and "model" in schema.get("properties", {}):
            schema["properties"]["model"] = {"enum": [model]}
    return described
