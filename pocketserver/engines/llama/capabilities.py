"""What a model can do, told by its file alone; and where that is remembered."""

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from pocketserver import __version__
from pocketserver.engines.llama.model_hash import identity_of

FILE_NAME = "capabilities.json"
_MOST_ENTRIES = 500


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """`completion` models write text, `embedding` models (encoders) only make vectors.

    Without `chat_template` in the file ChatML is used. `template_problem` is why a template cannot be used at all;
    raw prompts are answered all the same. `insert`: the model fills in what is missing in the middle of a text.
    """

    completion: bool
    embedding: bool
    chat_template: bool
    tools: bool
    thinking: bool
    insert: bool
    template_problem: str | None = None


class CapabilityMemory:
    """One small file, shared by servers; a damaged one counts as empty, and one that cannot be written is left."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME

    def known(self, key: str) -> Capabilities | None:
        return self._read().get(key)

    def remember(self, key: str, found: Capabilities) -> None:
        kept = list((self._read() | {key: found}).items())[-_MOST_ENTRIES:]
        temporary = self._path.with_suffix(f".{os.getpid()}")
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(msgspec.json.encode(dict(kept)))
            temporary.replace(self._path)

    def _read(self) -> dict[str, Capabilities]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, Capabilities])
        except (OSError, msgspec.MsgspecError):
            return {}


def capability_key(parts: Sequence[Path], template: str | None) -> str:
    """By the files as they are now and the template in place of their own. Raises OSError."""
    facts = [__version__, identity_of(parts), template or ""]
    return hashlib.sha256("\n".join(facts).encode(errors="replace")).hexdigest()
