"""`<name>.toml` beside the weights: what a name adds to them, in a form that people can read and change."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from pocketserver.models.gguf import BadModelFile
from pocketserver.models.options import OPTIONS, OptionFault, checked_value
from pocketserver.models.stored import ModelSettings, ParameterValue

MAX_SETTINGS_BYTES = 8 << 20
_REMEDY = "Mend or remove this file"


def read_settings(path: Path) -> ModelSettings:
    """The settings of a model; those of a missing file are empty. Raises `BadModelFile` with the fault."""
    try:
        if path.stat().st_size > MAX_SETTINGS_BYTES:
            raise BadModelFile(path, f"has more than {MAX_SETTINGS_BYTES >> 20} MiB", _REMEDY)
        settings = msgspec.toml.decode(path.read_bytes(), type=ModelSettings)
        _check(settings.parameters)
    except FileNotFoundError:
        return ModelSettings()
    except OSError as error:
        raise BadModelFile(path, f"cannot be read ({error.strerror})", "Check its permissions") from error
    except (msgspec.DecodeError, OptionFault, UnicodeDecodeError) as error:
        raise BadModelFile(path, f"is no settings file of a model ({' '.join(str(error).split())})", _REMEDY) from error
    return settings


def settings_bytes(settings: ModelSettings) -> bytes:
    """The file's content: TOML, long texts over several lines."""
    return ("\n".join(_lines(settings)) + "\n").encode()


def _check(parameters: Mapping[str, ParameterValue]) -> None:
    for name, value in parameters.items():
        if name not in OPTIONS:
            raise OptionFault(f"unknown parameter {name!a}")
        checked_value(name, value)


def _lines(settings: ModelSettings) -> Iterator[str]:
    for name in ("parent", "system", "template"):
        if text := getattr(settings, name):
            yield f"{name} = {_text(text)}"
    if settings.license:
        yield f"license = [{', '.join(map(_text, settings.license))}]"
    if settings.modified:
        yield f"modified = {settings.modified!r}"
    if settings.parameters:
        yield "\n[parameters]"
        for name, value in settings.parameters.items():
            yield f"{name} = {_value(value)}"
    for message in settings.messages:
        yield f'\n[[messages]]\nrole = "{message.role}"\ncontent = {_text(message.content)}'


def _value(value: ParameterValue) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _text(value)
    return f"[{', '.join(map(_text, value))}]" if isinstance(value, list) else repr(value)


_ESCAPES = {ord('"'): '\\"', ord("\\"): "\\\\"} | {
    code: f"\\u{code:04X}" for code in (*range(0x20), 0x7F) if code != ord("\n")
}


def _text(text: str) -> str:
    """A basic string of TOML 1.0, over several lines where the text has them."""
    escaped = text.translate(_ESCAPES)
    return f'"""\n{escaped}"""' if "\n" in text else f'"{escaped}"'
