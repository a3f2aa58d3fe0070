"""The code that names a room: short enough to be said aloud, from letters and digits that nobody mixes up."""

import re
import secrets
from pathlib import Path

from pocketserver.errors import StartupError, UsageError
from pocketserver.models.whole_file import put_in_place

ALPHABET = "23456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Without 0 and O, 1, I and L, and U, which sounds like you."""
LENGTH = 6
_CODE = re.compile(f"[{ALPHABET}]{{{LENGTH}}}")
_FILE = "room_code"


def new_code() -> str:
    """A code at random. It is a name, not a secret."""
    return "".join(secrets.choice(ALPHABET) for _ in range(LENGTH))


def checked_code(text: str) -> str:
    """A code as a person typed it, in capitals and without blanks and dashes. Raises UsageError."""
    code = re.sub(r"[\s-]", "", text).upper()
    if not _CODE.fullmatch(code):
        raise UsageError(f"{text[:40]!a} is no room code. A code has {LENGTH} of {ALPHABET}, such as 4TKG9P.")
    return code


def own_code(home: Path) -> str:
    """This home folder's code, made at the first call. Reads and writes the disk. Raises StartupError."""
    path = home / _FILE
    try:
        found = path.read_text(encoding="ascii").strip()
        if _CODE.fullmatch(found):
            return found
    except (FileNotFoundError, UnicodeDecodeError):
        pass
    except OSError as error:
        raise StartupError(f"{path} cannot be read: {error.strerror}.") from error
    return _made(home, path)


def _made(home: Path, path: Path) -> str:
    code = new_code()
    temporary = path.with_name(f".{_FILE}.{secrets.token_hex(4)}")
    try:
        home.mkdir(parents=True, exist_ok=True)
        temporary.write_text(code + "\n", encoding="ascii")
        put_in_place(temporary, path)
    except OSError as error:
        raise StartupError(f"{path} cannot be written: {error.strerror}.") from error
    return code
