"""Which words can name a model: they become file names, and they come from strangers."""

MAX_NAME_BYTES = 200  # file systems take 255, and temporary files need some of them
_SEPARATORS = frozenset('/\\:*?"<>|')  # of paths and drives, and what Windows forbids in file names


def is_model_name(name: str) -> bool:
    """Whether a name stays inside its folder on every system: no separators, no `..`, nothing hidden or unprintable."""
    return (
        0 < len(name.encode(errors="replace")) <= MAX_NAME_BYTES
        and name.isprintable()
        and not _SEPARATORS.intersection(name)
        and ".." not in name
        and not name.startswith((".", " ", "-"))
        and not name.endswith((".", " "))
    )
