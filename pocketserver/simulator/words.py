"""The words of the simulator's control: state changes and faults, as JSON, as TOML and as Python arguments."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType, inspect

from pocketserver.chat import JsonValue
from pocketserver.engines.sim.state import App, Network
from pocketserver.errors import Code, UsageError

Seconds = Annotated[float, Meta(ge=0, le=86_400)]
Thermal = Literal["nominal", "fair", "serious", "critical", "auto"]
AnyWord = TypeVar("AnyWord", bound=msgspec.Struct)


class StateChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be different on the device; absent fields stay.

    `thermal` pins a state, `auto` lets heat decide. `battery` is in percent. `model` null unloads. `goodbye` says
    whether mDNS announces the leaving when the network is set to `gone`. `grace_seconds` is how long connections live
    on in silence when the app goes to the background. `speed` is a factor or `max`. `key` `rotated` puts a new main key
    in place of the old one.
    """

    thermal: Thermal | UnsetType = UNSET
    low_power: bool | UnsetType = UNSET
    app: App | UnsetType = UNSET
    network: Network | UnsetType = UNSET
    address: str | UnsetType | None = UNSET
    goodbye: bool | UnsetType = UNSET
    grace_seconds: Seconds | UnsetType = UNSET
    memory_limit_bytes: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    battery: Annotated[float, Meta(ge=0, le=100)] | UnsetType = UNSET
    model: str | UnsetType | None = UNSET
    context_size: Annotated[int, Meta(ge=16)] | UnsetType = UNSET
    speed: Literal["max"] | Annotated[float, Meta(gt=0)] | UnsetType = UNSET
    key: Literal["rotated"] | UnsetType = UNSET

    def given(self) -> dict[str, JsonValue]:
        """The fields that are present."""
        shown: dict[str, JsonValue] = msgspec.to_builtins(self)
        return shown


class FaultMatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which requests a fault can meet. Without `path` every POST, so that health checks use nothing up.

    `model` and `last_message` are compared with the body's text, `regex` is searched in it.
    """

    path: str | None = None
    method: str | None = None
    model: str | None = None
    last_message: str | None = None
    regex: str | None = None
    has_tools: bool | None = None
    stream: bool | None = None


class When(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a fault strikes among the requests that match: the `next` n, `every` n-th, or by `probability`.

    With `match` alone it strikes each of them.
    """

    next: Annotated[int, Meta(ge=1)] | None = None
    every: Annotated[int, Meta(ge=1)] | None = None
    probability: Annotated[float, Meta(ge=0, le=1)] | None = None
    match: FaultMatch | None = None


class NewFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault as it is asked for; see `FAULTS` for names. Without `when` it strikes the next request once.

    `retry_after` is in seconds, null leaves the header out; absent takes what a real server says.
    """

    fault: str
    code: Code | None = None
    message: str | None = None
    after_tokens: Annotated[int, Meta(ge=0, le=10_000_000)] | None = None
    seconds: Seconds | None = None
    retry_after: Seconds | UnsetType | None = UNSET
    reset: bool = False
    when: When = When(next=1)


def read(kind: type[AnyWord], given: Mapping[str, JsonValue], what: str) -> AnyWord:
    """Check words from outside. Raises UsageError that names the field and what it may be."""
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{what} cannot be: {error}.{_allowed(kind, str(error))}") from error


def _allowed(kind: type[msgspec.Struct], fault: str) -> str:
    """The words that would have been right, where a wrong one was written at the top."""
    names = kind.__struct_fields__
    if re.search(r"unknown field `\w+`$", fault):
        return f" It has: {', '.join(names)}."
    place = re.search(r"Invalid enum value .* at `\$\.(\w+)`$", fault)
    if place is None or place[1] not in names:
        return ""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    field = next(field for field in info.fields if field.name == place[1])
    return f" Allowed: {', '.join(_words_of(field.type))}."


def _words_of(kind: inspect.Type) -> Sequence[str]:
    match kind:
        case inspect.UnionType():
            return [word for one in kind.types for word in _words_of(one)]
        case inspect.LiteralType():
            return [str(value) for value in kind.values]
        case inspect.EnumType():
            return [str(member.value) for member in kind.cls]
        case inspect.FloatType():
            return ["a number"]
        case _:
            return []
