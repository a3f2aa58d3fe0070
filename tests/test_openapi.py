"""The API document of each profile: valid, the same every time, and of exactly the routes that the server has."""

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from openapi_spec_validator import OpenAPIV31SpecValidator

from pocketserver.application import application
from pocketserver.openapi import document
from pocketserver.operations import OPERATIONS
from pocketserver.profile import load_profile, profile_names
from tests.serving import running
from tests.test_serve_command import run

each_profile = pytest.mark.parametrize("profile", profile_names())


@pytest.fixture
def described(profile: str) -> dict[str, Any]:
    found: dict[str, Any] = document(load_profile(profile))
    return found


@each_profile
def test_it_is_valid_openapi(described: dict[str, Any]) -> None:
    plain = json.loads(json.dumps(described))

    assert not [error.message for error in OpenAPIV31SpecValidator(plain).iter_errors()]


@each_profile
async def test_every_route_of_the_profile_is_in_it_and_nothing_else(
    profile: str, described: dict[str, Any], tmp_path: Path
) -> None:
    async with running(tmp_path, profile=profile, mdns=False, page=False) as running_server:
        app: web.Application = application(running_server.server)
        routed = {(route.method.lower(), route.resource.canonical) for route in app.router.routes() if route.resource}
    told = {(method, path) for path, methods in described["paths"].items() for method in methods}

    assert {(method, path) for method, path in routed if method != "head"} == told
    assert {path for _, path in told} == set(load_profile(profile).routes)


@each_profile
def test_every_refusal_has_its_familys_shape(profile: str, described: dict[str, Any]) -> None:
    families = load_profile(profile).error_families
    for path, methods in described["paths"].items():
        family = families[max((prefix for prefix in families if path.startswith(prefix)), key=len)]
        for operation in methods.values():
            for status, response in operation["responses"].items():
                if status != "200":
                    schema = json.dumps(response["content"]["application/json"]["schema"])
                    assert f"{family.capitalize()}Error" in schema


@each_profile
def test_keys_are_asked_for_where_the_profile_asks(profile: str, described: dict[str, Any]) -> None:
    asks = load_profile(profile).settings["auth"] == "on"
    chat = described["paths"]["/v1/chat/completions"]["post"]

    assert ("security" in chat) == ("401" in chat["responses"]) == asks


def test_operations_are_told_once_each() -> None:
    places = [(operation.method, operation.path) for operation in OPERATIONS]

    assert len(set(places)) == len(places)
    assert {path for name in profile_names() for path in load_profile(name).routes} == {path for _, path in places}


@each_profile
def test_the_command_prints_it_and_writes_the_same_into_a_file(
    profile: str, described: dict[str, Any], tmp_path: Path
) -> None:
    printed = run(tmp_path, "openapi", "--profile", profile)
    written = run(tmp_path, "openapi", "--profile", profile, "--output", str(tmp_path / "api.json"))

    assert (printed.returncode, written.returncode, written.stdout) == (0, 0, "")
    assert json.loads(printed.stdout) == described
    assert (tmp_path / "api.json").read_text() == printed.stdout


def test_a_profile_that_is_none_and_a_file_that_cannot_be_are_explained(tmp_path: Path) -> None:
    unknown = run(tmp_path, "openapi", "--profile", "cloud")
    nowhere = run(tmp_path, "openapi", "--output", str(tmp_path / "no" / "api.json"))

    assert (unknown.returncode, nowhere.returncode) == (2, 1)
    assert "Allowed" in unknown.stderr
    assert "cannot be written" in nowhere.stderr
