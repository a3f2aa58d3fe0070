"""How far the fetching of a model is."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Stage(StrEnum):
    WAITING = "waiting"  # another pull of the same model is at work
    DOWNLOADING = "downloading"
    UNPACKING = "unpacking"
    VERIFYING = "verifying"
    STORING = "storing"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Progress:
    """Bytes of the present stage; `total_bytes` 0 means that it is not known."""

    stage: Stage
    done_bytes: int
    total_bytes: int


Report: TypeAlias = Callable[[Progress], None]
