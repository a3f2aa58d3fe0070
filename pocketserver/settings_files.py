"""Where the shipped settings files lie: profiles, the model catalogue, devices and scenarios."""

from pathlib import Path

_PACKAGE = Path(__file__).parent


def shipped_settings() -> Path:
    """The folder of shipped TOML files: inside an installed wheel, or `settings/` in a source checkout.

    The wheel's place comes first: beside an installed package a folder named `settings` belongs to somebody else.
    """
    installed = _PACKAGE / "shipped_settings"
    return installed if installed.is_dir() else _PACKAGE.parent / "settings"
