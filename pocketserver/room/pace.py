"""The times of a link, the same for both ends."""

from dataclasses import dataclass

from pocketserver.room import protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """In seconds. Each side shows every `heartbeat` that it lives, and gives the other up after `deadline` of silence.

    Whoever leaves a full outbox unread for `slow_reader` loses its answer. `look` is how often the host tells what has
    changed.
    """

    heartbeat: float = protocol.HEARTBEAT_SECONDS
    deadline: float = protocol.DEADLINE_SECONDS
    look: float = 1.0
    slow_reader: float = 5.0


USUAL = Pace()
