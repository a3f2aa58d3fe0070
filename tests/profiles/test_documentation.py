"""What README and docs/profiles.md say of profiles, routes, keys, shapes and statuses is what the code does."""

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from pocketserver.application import FAMILIES
from pocketserver.errors import Code
from pocketserver.operations import OPERATIONS
from pocketserver.profile import Profile, load_profile, profile_names
from tests.test_serve_command import Started

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "profiles.md").read_text(encoding="utf-8")
SHOWN = {"openai": "OpenAI", "anthropic": "Anthropic", "ollama": "Ollama"}


def table(first: str) -> list[list[str]]:
    """The cells of the page's table that begins with this head."""
    lines = PAGE[PAGE.index(first) :].split("\n\n", 1)[0].splitlines()
    rows = [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines]
    return [rows[0], *rows[2:]]


def cell(profile: Profile, method: str, path: str) -> str:
    """What the page must say of a route in a profile."""
    if path not in profile.routes:
        return "–"
    family = profile.error_families[max((way for way in profile.error_families if path.startswith(way)), key=len)]
    free = profile.settings["auth"] == "off" or path in profile.keyless
    asks = "open" if free else profile.route_scopes.get(path, "key")
    return f"{asks}, {SHOWN[family]}"


def test_the_table_of_routes_is_that_of_the_profiles() -> None:
    head, *rows = table("| Route |")
    profiles = [load_profile(name) for name in head[1:]]
    places = [tuple(row[0].split(" ", 1)) for row in rows]

    assert sorted(head[1:]) == profile_names()
    assert places == [(operation.method.upper(), operation.path) for operation in OPERATIONS]
    for (method, path), row in zip(places, rows, strict=True):
        assert row[1:] == [cell(profile, method, path) for profile in profiles], path


def test_the_table_of_statuses_is_that_of_the_error_tables() -> None:
    _, *rows = table("| Code | OpenAI |")
    told = {code: tuple(map(int, row[1:])) for row in rows for code in row[0].split(", ")}

    assert told == {
        code.value: tuple(FAMILIES[family](statuses={}, codes={}).status(code) for family in SHOWN) for code in Code
    }


def test_the_profiles_that_differ_from_it_are_named() -> None:
    for name in profile_names():
        profile = load_profile(name)
        said = PAGE[PAGE.index("`pocketllm` differs in two") :].split("\n\n", 1)[0].replace("\n", " ")
        for code, status in profile.statuses.items():
            assert f"`{code.value}` is {status}" in said
        for code, word in profile.codes.items():
            assert f"`{word.value}` for `{code.value}`" in said


def test_what_another_api_touches_is_there() -> None:
    section = README[README.index("### Architecture") :]
    paths = re.findall(r"`((?:pocketserver|settings)/[\w/.*]+)`", section)

    assert len(paths) == 5
    assert all(list(ROOT.glob(path)) for path in paths)
    assert "*EmbeddingsRoute(access=access).routes()" in (ROOT / "pocketserver/application.py").read_text()
    assert "class EmbeddingsRoute" in (ROOT / "pocketserver/wire/openai_embeddings.py").read_text()


def blocks() -> Mapping[str, str]:
    found = re.findall(r"```sh\n# (\w+)\n(.*?)```", PAGE, re.DOTALL)
    return dict(found)


def test_every_profile_has_its_chapter_and_its_commands() -> None:
    assert sorted(re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)) == sorted(blocks()) == profile_names()


@pytest.mark.parametrize("profile", profile_names())
def test_the_commands_of_its_chapter_are_answered(profile: str, tmp_path: Path) -> None:
    server = Started(tmp_path, "--profile", profile)
    try:
        origin = server.ready["base_url"].removesuffix("/v1")
        code = re.sub(r"http://127\.0\.0\.1:\d+", origin, blocks()[profile])
        environment = {**os.environ, "KEY": server.ready["api_key"] or ""}
        commands = [command for command in re.split(r"\n(?=curl)", code.strip()) if command]
        documents = [json.loads(_run(command, environment)) for command in commands]
    finally:
        server.process.terminate()
        server.finish()

    assert documents
    assert all("error" not in document or document["error"] is None for document in documents), documents


def _run(command: str, environment: Mapping[str, str]) -> str:
    ran = subprocess.run(
        ["sh", "-c", command], env=dict(environment), capture_output=True, text=True, timeout=60, check=True
    )
    return ran.stdout
