"""The name of this server's host on the link: `pocket-<hex>.local.`, never the system's own host name."""

import contextlib
import hashlib
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

_FILE_NAME = "lan-identity"
_FORM = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Identity:
    """Eight hexadecimal digits that stay the same for a home folder and a port.

    The port is part of it because two servers on one machine share the home folder, and a host name shared by both
    would be withdrawn for both when one says goodbye.
    """

    hexadecimal: str

    @property
    def host_name(self) -> str:
        """Fully qualified, with the final dot: `pocket-1a2b3c4d.local.`"""
        return f"pocket-{self.hexadecimal}.local."

    def renamed(self) -> "Identity":
        """Another identity, for when someone else on the link answers for our host name (a copied home folder)."""
        return Identity(secrets.token_hex(4))


def load(home: Path, port: int) -> Identity:
    """The identity of a server on `port`; made at the first call for a home folder. Reads and writes a small file."""
    seed = _read(home / _FILE_NAME) or _make(home / _FILE_NAME)
    return Identity(hashlib.sha256(f"{seed}:{port}".encode()).hexdigest()[:8])


def _read(file: Path) -> str | None:
    try:
        text = file.read_text("ascii", errors="replace").strip()
    except FileNotFoundError:
        return None
    return text if _FORM.fullmatch(text) else None


def _make(file: Path) -> str:
    """Write a new seed whole; of two servers that start together both take the one that came to lie there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    seed = secrets.token_hex(16)
    fresh = file.with_name(f"{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    fresh.write_text(seed + "\n", "ascii")
    try:
        with contextlib.suppress(FileExistsError):
            os.link(fresh, file)
        kept = _read(file)
        if kept is None:  # a damaged file lies there
            fresh.replace(file)
        return kept or seed
    finally:
        fresh.unlink(missing_ok=True)
