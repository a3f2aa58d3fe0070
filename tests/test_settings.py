"""Settings: later sources win, each value knows where it came from, and a wrong one is a sentence that says what to do."""

from pathlib import Path

import pytest

from pocketserver.errors import UsageError
from pocketserver.profile import load_profile, profile_names
from pocketserver.settings import ENVIRONMENT_PREFIX, SECRETS, Settings, load, shown


def test_flags_win_over_environment_over_file_over_profile_over_default(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text("port = 1001\nmax_queue = 7\ndefault_max_tokens = 5\n")
    environment = {"POCKETSERVER_HOME": str(tmp_path), "POCKETSERVER_PORT": "1002", "POCKETSERVER_MAX_QUEUE": "8"}
    effective = load(flags={"port": 1003}, environment=environment)

    assert (effective.settings.port, effective.origins["port"]) == (1003, "flag")
    assert (effective.settings.max_queue, effective.origins["max_queue"]) == (8, "environment")
    assert effective.settings.default_max_tokens == 5
    assert effective.origins["default_max_tokens"] == f"file {tmp_path / 'settings.toml'}"
    assert effective.origins["host"] == "profile pocketllm"
    assert effective.origins["stall_seconds"] == "default"


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("mdns", "false", False),
        ("context", "4096", 4096),
        ("gpu_layers", "12", 12),
        ("gpu_layers", "auto", "auto"),
        ("speed", "max", "max"),
        ("speed", "2.5", 2.5),
        ("allowed_hosts", "a.example, b.example", ("a.example", "b.example")),
        ("default_temperature", "0.2", 0.2),
    ],
)
def test_the_environment_speaks_in_text(tmp_path: Path, key: str, text: str, value: object) -> None:
    environment = {"POCKETSERVER_HOME": str(tmp_path), ENVIRONMENT_PREFIX + key.upper(): text}

    assert getattr(load(flags={}, environment=environment).settings, key) == value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("port", "70000"),
        ("port", "many"),
        ("admission", "stack"),
        ("default_temperature", "3"),
        ("gpu_layers", "-1"),
        ("speed", "0"),
        ("mdns", "perhaps"),
        ("context", "3"),
    ],
)
def test_a_wrong_value_names_key_value_source_and_what_is_allowed(tmp_path: Path, key: str, value: str) -> None:
    environment = {"POCKETSERVER_HOME": str(tmp_path), ENVIRONMENT_PREFIX + key.upper(): value}
    with pytest.raises(UsageError) as caught:
        load(flags={}, environment=environment)

    text = str(caught.value)
    assert key in text
    assert value in text
    assert "environment" in text
    assert "Allowed:" in text
    assert "\n" not in text


def test_an_unknown_key_in_a_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text("prot = 1\n")

    with pytest.raises(UsageError, match="prot"):
        load(flags={"home": str(tmp_path)}, environment={}, file=tmp_path / "s.toml")


def test_a_file_that_is_no_toml_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text("port = = 1\n")

    with pytest.raises(UsageError, match=r"settings\.toml is not valid TOML"):
        load(flags={"home": str(tmp_path)}, environment={})


@pytest.mark.parametrize("secret", sorted(SECRETS))
def test_secrets_come_from_the_environment_only_and_are_never_shown(tmp_path: Path, secret: str) -> None:
    environment = {"POCKETSERVER_HOME": str(tmp_path), ENVIRONMENT_PREFIX + secret.upper(): "sk-hidden-hidden"}
    effective = load(flags={}, environment=environment)
    (tmp_path / "settings.toml").write_text(f'{secret} = "sk-hidden-hidden"\n')

    assert (secret, "(set)", "environment") in shown(effective)
    assert "hidden" not in str(shown(effective))
    with pytest.raises(UsageError, match="environment variable"):
        load(flags={}, environment=environment)


def test_every_setting_says_what_is_allowed() -> None:
    effective = load(flags={}, environment={})

    assert set(effective.origins) == set(Settings.__struct_fields__)


@pytest.mark.parametrize("name", profile_names())
def test_every_shipped_profile_reads_and_its_settings_are_settings(name: str, tmp_path: Path) -> None:
    profile = load_profile(name)

    assert load(flags={"profile": name, "home": str(tmp_path)}, environment={}).profile == profile
    assert set(profile.keyless) <= set(profile.routes)
    assert set(profile.route_scopes) <= set(profile.routes)
    assert "/" in profile.error_families
