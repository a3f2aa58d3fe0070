"""How much memory may still be taken on this machine, in this container. The server needs it too: no numpy here."""

import contextlib
from pathlib import Path

import psutil


def available_memory(limit_bytes: int | None = None) -> int:
    """Bytes that may be taken: what the system has, no more than a container allows or than `limit_bytes`."""
    bounds = [int(psutil.virtual_memory().available), _container_bytes(), limit_bytes]
    return min(bound for bound in bounds if bound is not None)


def _container_bytes() -> int | None:
    """What Linux control groups leave to this process, None without a limit."""
    folder = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):
        limit = int((folder / "memory.max").read_text())
        used = int((folder / "memory.current").read_text())
        return max(0, limit - used) + _reclaimable(folder)
    return None


def _reclaimable(folder: Path) -> int:
    """Bytes of cached files, which count as used but are given back when needed."""
    rows = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return sum(int(row[1]) for row in rows if row[0] in {"inactive_file", "active_file"})
