"""Profiles: what a product serves, as data. Code reads values from here and never asks for a profile's name."""

import tomllib
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from pocketserver.errors import Code, UsageError
from pocketserver.settings_files import shipped_settings


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One product's rules.

    `routes` are the route templates that exist; every other path is `unknown_route`, and `unserved` of them are refused
    in words of their own. `keyless` routes need no key; `route_scopes` names the key scope of a route where it is not
    `chat`. `health`, `models` and `root` name shapes of wire/device.py. `host_rule`, `origin_rule` and `peer_rule` name
    rules of gate/hosts.py. `error_families` says by path prefix in whose shape errors are written; `statuses` and
    `codes` override rows of the general tables; `retry_after` are seconds that clients are always told to wait.

    `address_variable` is an environment variable whose URL says where to listen; with `moves_when_taken` any free port
    does when the profile's own is taken. `names_room` shows a room's code. `model_prefix` stands before the ids that
    clients see; with `model_required` a request must name its model. `stores` keeps responses; `drops_hosted_tools`
    leaves out tools that only a product's own servers run, instead of refusing them. `shows_warnings` tells clients
    what was not done as asked. `page` serves a page for browsers, with pairing. `settings` are this profile's defaults.
    """

    name: str
    summary: str
    settings: Mapping[str, Any]
    routes: tuple[str, ...]
    keyless: tuple[str, ...]
    health: str
    models: str
    root: str
    host_rule: Literal["own", "exact_loopback", "loopback_names"]
    origin_rule: Literal["own_or_none", "none_at_all", "local_apps"]
    peer_rule: Literal["local", "loopback"]
    route_scopes: Mapping[str, str] = {}
    error_families: Mapping[str, str] = {}
    statuses: Mapping[Code, int] = {}
    codes: Mapping[Code, Code] = {}
    retry_after: Mapping[Code, float] = {}
    unserved: Mapping[str, str] = {}
    address_variable: str | None = None
    moves_when_taken: bool = False
    names_room: bool = False
    model_prefix: str = ""
    model_required: bool = False
    stores: bool = False
    drops_hosted_tools: bool = False
    shows_warnings: bool = False
    page: bool = False


def profile_names() -> list[str]:
    return sorted(path.stem for path in (shipped_settings() / "profiles").glob("*.toml"))


def load_profile(name: str) -> Profile:
    """Read a shipped profile. Raises UsageError for a name that is none."""
    if name not in profile_names():
        raise UsageError(f"profile = {name!r} cannot be. Allowed: {', '.join(profile_names())}.")
    text = (shipped_settings() / "profiles" / f"{name}.toml").read_text(encoding="utf-8")
    return msgspec.convert({"name": name, **tomllib.loads(text)}, Profile)
