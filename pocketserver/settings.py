"""Settings: defaults < profile < file < environment < flags, read once into a frozen object that knows its origins.

Nothing below this module reads the environment or a settings file.
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_type_hints

import msgspec
import platformdirs
from msgspec import Meta

from pocketserver.errors import UsageError
from pocketserver.loopback_url import OLLAMA_PORT, loopback_address
from pocketserver.profile import Profile, load_profile

ENVIRONMENT_PREFIX = "POCKETSERVER_"
SECRETS = frozenset({"api_key", "upstream_key", "room_key"})
"""Read from the environment only, shown as set or unset, never written anywhere."""

Positive = Annotated[float, Meta(gt=0)]
OnOff = Literal["on", "off"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting. One word for the TOML key (`max_queue`), the flag (`--max-queue`) and `POCKETSERVER_MAX_QUEUE`."""

    home: Annotated[str, Meta(description="a folder for keys, models and caches")] = ""
    engine: Annotated[
        Literal["llama", "sim", "upstream", "ray", "room"], Meta(description="llama, sim, upstream, ray or room")
    ] = "llama"
    upstream: Annotated[tuple[str, ...], Meta(description="base URLs such as http://127.0.0.1:8000/v1")] = ()
    model: Annotated[
        str | None, Meta(description="the name of an installed or catalogued model, or the path of a GGUF file")
    ] = None
    context: Annotated[Annotated[int, Meta(ge=16, le=10_000_000)] | None, Meta(description="tokens, 16 or more")] = None
    model_folders: Annotated[
        tuple[str, ...], Meta(description="a list of folders whose GGUF files are served too, and only read")
    ] = ()
    ollama_models: Annotated[
        str, Meta(description="a folder in which Ollama keeps models, read in place; off for none")
    ] = ""
    pull_stall_seconds: Annotated[
        Positive, Meta(description="seconds that a server may be silent while a model is fetched, more than 0")
    ] = 60.0
    gpu_layers: Annotated[
        Literal["auto"] | Annotated[int, Meta(ge=0)], Meta(description="auto, or a number of layers, 0 or more")
    ] = "auto"
    threads: Annotated[Annotated[int, Meta(ge=1, le=512)] | None, Meta(description="a number from 1 to 512")] = None
    threads_batch: Annotated[Annotated[int, Meta(ge=1, le=512)] | None, Meta(description="a number from 1 to 512")] = (
        None
    )
    micro_batch: Annotated[Annotated[int, Meta(ge=32, le=2048)] | None, Meta(description="tokens from 32 to 2048")] = (
        None
    )
    kv_type: Annotated[Literal["auto", "f16", "bf16", "q8_0"], Meta(description="auto, f16, bf16 or q8_0")] = "auto"
    flash_attention: Annotated[Literal["auto", "on", "off"], Meta(description="auto, on or off")] = "auto"
    blas: Annotated[Literal["auto", "on", "off"], Meta(description="auto, on or off")] = "auto"
    speculation: Annotated[Literal["auto", "off"], Meta(description="auto or off")] = "auto"
    tuning: Annotated[Literal["auto", "off"], Meta(description="auto or off")] = "auto"
    chat_template: Annotated[str | None, Meta(description="the path of a Jinja chat template")] = None
    reasoning_budget: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="the most tokens a model may think, 0 or more")
    ] = None
    memory_limit_bytes: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="a number of bytes")] = None
    cache_memory_bytes: Annotated[
        Annotated[int, Meta(ge=0)], Meta(description="a number of bytes, 0 keeps nothing")
    ] = 256 * 1024 * 1024
    cache_disk_bytes: Annotated[Annotated[int, Meta(ge=0)], Meta(description="a number of bytes, 0 keeps nothing")] = (
        2 * 1024 * 1024 * 1024
    )

    host: Annotated[str, Meta(description="an address to listen on, `0.0.0.0` for every IPv4 and IPv6 address")] = (
        "127.0.0.1"
    )
    port: Annotated[Annotated[int, Meta(ge=0, le=65535)], Meta(description="a port from 0 (any free one) to 65535")] = (
        8080
    )
    advertise: Annotated[str | None, Meta(description="an address or the name of a network interface")] = None
    name: Annotated[str | None, Meta(description="the name under which other devices see this server")] = None
    mdns: Annotated[bool, Meta(description="true or false")] = True
    page: Annotated[bool, Meta(description="true or false")] = True
    allow_public: Annotated[bool, Meta(description="true or false")] = False
    allowed_hosts: Annotated[tuple[str, ...], Meta(description="a list of host names")] = ()
    allowed_origins: Annotated[
        tuple[str, ...], Meta(description="a list of origins such as http://tools.example:3000")
    ] = ()
    auth: Annotated[OnOff, Meta(description="on or off")] = "on"
    api_key: Annotated[str | None, Meta(description="a key of at least 8 printable characters")] = None
    upstream_key: Annotated[str | None, Meta(description="the key that the upstream asks for")] = None
    room_key: Annotated[str | None, Meta(description="a key of the room's host")] = None
    room: Annotated[str | None, Meta(description="a room's code such as 4TKG9P, or auto for this folder's own")] = None
    room_url: Annotated[str | None, Meta(description="the address of the room's host")] = None
    wait: Annotated[
        Annotated[float, Meta(ge=0)], Meta(description="seconds to wait for the room's host at the start, 0 or more")
    ] = 10.0

    admission: Annotated[Literal["mutex", "queue"], Meta(description="mutex or queue")] = "mutex"
    max_queue: Annotated[
        Annotated[int, Meta(ge=1, le=100_000)], Meta(description="running and waiting requests, 1 or more")
    ] = 64
    concurrency: Annotated[
        Annotated[int, Meta(ge=1, le=10_000)] | None,
        Meta(description="requests that an upstream or a Ray cluster answers at once, 1 or more"),
    ] = None
    ray_address: Annotated[
        str | None, Meta(description="the address of a Ray cluster, or auto; none is RAY_ADDRESS, else this machine")
    ] = None
    ray_app: Annotated[Annotated[str, Meta(min_length=1)], Meta(description="the name of the Ray application")] = (
        "pocketserver"
    )
    ray_engine: Annotated[Literal["llama", "sim"], Meta(description="llama or sim")] = "llama"
    ray_replicas: Annotated[
        Annotated[int, Meta(ge=1, le=10_000)], Meta(description="a number of replicas, 1 or more")
    ] = 1
    ray_most_replicas: Annotated[
        Annotated[int, Meta(ge=1, le=10_000)] | None, Meta(description="a number of replicas, 1 or more")
    ] = None
    ray_cpus: Annotated[Positive, Meta(description="processors that Ray sets aside for a replica, more than 0")] = 1.0
    ray_gpus: Annotated[
        Annotated[float, Meta(ge=0)], Meta(description="GPUs that Ray sets aside for a replica, 0 or more")
    ] = 0.0
    upstream_idle_seconds: Annotated[
        Positive, Meta(description="seconds that an upstream's answer may pause, more than 0")
    ] = 60.0
    queue_seconds: Annotated[Positive | None, Meta(description="seconds that a request may wait, more than 0")] = None
    early_headers_after_seconds: Annotated[
        Positive | None, Meta(description="seconds until a waiting stream gets its headers, more than 0")
    ] = None
    keep_alive_seconds: Annotated[
        Positive | None, Meta(description="seconds between comments in a silent stream, more than 0")
    ] = None
    switching: Annotated[bool, Meta(description="true (any installed model is loaded on request) or false")] = False
    model_keep_alive_seconds: Annotated[
        float, Meta(description="seconds that an unused model stays loaded, negative for ever")
    ] = -1.0
    strict: Annotated[OnOff, Meta(description="on or off")] = "off"
    stall_seconds: Annotated[Positive, Meta(description="seconds, more than 0")] = 120.0
    shutdown_grace_seconds: Annotated[Annotated[float, Meta(ge=0)], Meta(description="seconds, 0 or more")] = 5.0
    max_body_bytes: Annotated[Annotated[int, Meta(ge=1024)], Meta(description="a number of bytes, 1024 or more")] = (
        4 * 1024 * 1024
    )
    max_packed_bytes: Annotated[
        Annotated[int, Meta(ge=1024)] | None, Meta(description="bytes of a request as a room packs it, 1024 or more")
    ] = None
    client_seconds: Annotated[
        Positive, Meta(description="seconds that a client may take to send its body or to read on, more than 0")
    ] = 60.0
    wrong_keys_a_minute: Annotated[Annotated[int, Meta(ge=1)], Meta(description="a number, 1 or more")] = 10

    default_max_tokens: Annotated[Annotated[int, Meta(ge=1)], Meta(description="tokens, 1 or more")] = 1024
    default_temperature: Annotated[Annotated[float, Meta(ge=0, le=2)], Meta(description="a number from 0 to 2")] = 0.7
    default_top_p: Annotated[Annotated[float, Meta(ge=0, le=1)], Meta(description="a number from 0 to 1")] = 0.95
    default_stop: Annotated[tuple[str, ...], Meta(description="a list of texts")] = ()
    generic_models: Annotated[tuple[str, ...], Meta(description="a list of names that mean the loaded model")] = ()

    seed: Annotated[int, Meta(description="a whole number")] = 0
    speed: Annotated[Literal["max"] | Positive, Meta(description="max, or a factor above 0")] = 1.0
    device: Annotated[str | None, Meta(description="the name of a device preset")] = None
    scenario: Annotated[str | None, Meta(description="the name or path of a scenario")] = None
    tokens_per_second: Annotated[Positive, Meta(description="tokens a second, more than 0")] = 40.0
    record: Annotated[str | None, Meta(description="a folder to write every exchange into")] = None
    replay: Annotated[str | None, Meta(description="a folder of recordings to answer from")] = None
    replay_fallback: Annotated[bool, Meta(description="true or false")] = False
    reply: Annotated[Literal["prose", "echo"], Meta(description="prose or echo")] = "prose"

    log: Annotated[Literal["text", "json"], Meta(description="text or json")] = "text"
    plain: Annotated[bool, Meta(description="true (lines, no live view) or false")] = False
    log_level: Annotated[Literal["debug", "info", "warning"], Meta(description="debug, info or warning")] = "info"
    ready_json: Annotated[str | None, Meta(description="a file, or - for standard output")] = None
    exit_on_stdin_close: Annotated[bool, Meta(description="true or false")] = False

    @property
    def home_folder(self) -> Path:
        return Path(self.home)

    @property
    def ollama_folder(self) -> Path | None:
        return None if self.ollama_models in {"", "off"} else Path(self.ollama_models).expanduser()


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """Settings with the profile they rest on, and where each value comes from (`default`, `profile …`, `file …`, …)."""

    settings: Settings
    profile: Profile
    origins: Mapping[str, str]


_TYPES = get_type_hints(Settings, include_extras=True)
_PATHS = frozenset({"home", "chat_template", "record", "replay"})


def load(
    *, flags: Mapping[str, object], environment: Mapping[str, str] | None = None, file: Path | None = None
) -> Effective:
    """Read all sources once.

    `flags` holds only what the person gave. `file` is `--settings`; without it `settings.toml` in the home folder is
    read when it is there. Raises UsageError, one line that names key, value and what is allowed.
    """
    environment = os.environ if environment is None else environment
    from_environment = _from_environment(environment)
    home = _home(flags, from_environment)
    path, from_file = _from_file(file, home)
    profile_name = _first("profile", "pocketllm", flags, from_environment, from_file)
    profile = load_profile(str(profile_name))

    values: dict[str, object] = {}
    origins = dict.fromkeys(_TYPES, "default")
    for origin, source in (
        (f"profile {profile.name}", profile.settings),
        *_queue_of_a_room(_first("room", None, flags, from_environment, from_file)),
        *_pointed_at(profile, environment),
        *_models_of_ollama(environment),
        (f"file {path}", from_file),
        ("environment", from_environment),
        ("flag", flags),
    ):
        for key, value in source.items():
            if key != "profile" and value is not None:
                values[key] = _checked(key, value, origin)
                origins[key] = origin
    values.setdefault("home", str(home))
    values.setdefault("ollama_models", str(Path.home() / ".ollama" / "models"))
    return Effective(settings=Settings(**values), profile=profile, origins=origins)  # type: ignore[arg-type]


def _pointed_at(profile: Profile, environment: Mapping[str, str]) -> list[tuple[str, Mapping[str, object]]]:
    """Host and port from the variable that a product's other programs read, when it is set."""
    name = profile.address_variable
    if name is None or not environment.get(name):
        return []
    host, port = loopback_address(environment[name], name)
    if port is None or port == OLLAMA_PORT:
        return [(f"environment {name}", {"host": host})]
    return [(f"environment {name}", {"host": host, "port": port})]


def _queue_of_a_room(room: object) -> list[tuple[str, Mapping[str, object]]]:
    """Guests of a room wait for one another; so do local clients then, unless somebody wants it otherwise."""
    return [] if room is None else [("room", {"admission": "queue"})]


def _models_of_ollama(environment: Mapping[str, str]) -> list[tuple[str, Mapping[str, object]]]:
    """Where Ollama itself is told to keep its models."""
    folder = environment.get("OLLAMA_MODELS")
    return [("environment OLLAMA_MODELS", {"ollama_models": folder})] if folder else []


def shown(effective: Effective) -> list[tuple[str, str, str]]:
    """Rows of key, value and origin for a person; secrets only as set or unset."""
    rows = [("profile", effective.profile.name, "")]
    for key, origin in effective.origins.items():
        value = getattr(effective.settings, key)
        text = ("(set)" if value else "(not set)") if key in SECRETS else msgspec.json.encode(value).decode()
        rows.append((key, text, origin))
    return rows


def _home(flags: Mapping[str, object], environment: Mapping[str, object]) -> Path:
    given = flags.get("home") or environment.get("home")
    return Path(str(given)).expanduser() if given else platformdirs.user_data_path("pocketserver")


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    known = {ENVIRONMENT_PREFIX + key.upper(): key for key in [*_TYPES, "profile"]}
    return {key: environment[name] for name, key in known.items() if environment.get(name)}


def _from_file(given: Path | None, home: Path) -> tuple[Path, dict[str, object]]:
    path = given or home / "settings.toml"
    if given is None and not path.exists():
        return path, {}
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"The settings file {path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"The settings file {path} is not valid TOML: {error}.") from error
    for key in values:
        if key in SECRETS:
            name = ENVIRONMENT_PREFIX + key.upper()
            raise UsageError(f"{key} must not stand in a file ({path}). Set the environment variable {name}.")
    return path, values


def _first(key: str, default: object, *sources: Mapping[str, object]) -> object:
    return next((source[key] for source in sources if source.get(key) is not None), default)


def _checked(key: str, value: object, origin: str) -> object:
    if key not in _TYPES:
        raise UsageError(f"Unknown setting {key} (from the {origin}). `pocketserver settings` lists those that exist.")
    if isinstance(value, str) and "tuple" in str(_TYPES[key]):
        value = [part.strip() for part in value.split(",") if part.strip()]
    try:
        converted: object = msgspec.convert(value, _TYPES[key], strict=not isinstance(value, str))
    except msgspec.ValidationError as error:
        allowed = _TYPES[key].__metadata__[-1].description
        said = "(hidden)" if key in SECRETS else msgspec.json.encode(value, enc_hook=str).decode()
        raise UsageError(f"{key} = {said} (from the {origin}) cannot be. Allowed: {allowed}.") from error
    if key in _PATHS and isinstance(converted, str):
        return str(Path(converted).expanduser())
    return converted
