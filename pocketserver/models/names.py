"""Which words can name a model, how names are compared, and under which file name each lies.

A name is `[[host/]namespace/]model[:tag]`; no tag means `latest`. Names that differ in case only are the same name.
On disk `/` becomes `+` and `:` becomes `@`, and `:latest` is left out, so that every system takes the file name:
`tiny` and `tiny:latest` are `tiny.gguf`, `ns/tiny:q4` is `ns+tiny@q4.gguf`. A file that somebody put into the folder
under a name outside this grammar is served under its file name.
"""

import re

MAX_NAME_BYTES = 200  # file systems take 255, and temporary files need some of them
DEFAULT_TAG = "latest"
_SEPARATORS = frozenset('/\\:*?"<>|')  # of paths and drives, and what Windows forbids in file names
_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}"
_PORT = r"(?::\d{1,5})?"
_NAME = re.compile(rf"(?:(?:{_WORD}{_PORT}/)?{_WORD}/)?{_WORD}(?::(?P<tag>{_WORD}))?")
_STEM = re.compile(_NAME.pattern.replace("/", r"\+").replace("(?::", "(?:@"))
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\.|$)", re.IGNORECASE)  # Windows opens no such files
_REGISTRY = ("registry.ollama.ai/", "library/")


def is_model_name(name: str) -> bool:
    """Whether a file name stays inside its folder on every system: no separators, nothing hidden or unprintable."""
    return (
        0 < len(name.encode(errors="replace")) <= MAX_NAME_BYTES
        and name.isprintable()
        and not _SEPARATORS.intersection(name)
        and ".." not in name
        and not name.startswith((".", " ", "-"))
        and not name.endswith((".", " "))
    )


def stem_for(name: str) -> str | None:
    """The file name, without its ending, of a new model of this name; None when it cannot be a model's name."""
    if len(name) > MAX_NAME_BYTES or _NAME.fullmatch(name) is None:
        return None
    stem = model_id(name).replace("/", "+").replace(":", "@")
    return stem if is_model_name(stem) and not _DEVICES.match(stem) else None


def id_of_stem(stem: str) -> str:
    """The name of the model that lies in a file of this name."""
    return model_id(stem.replace("+", "/").replace("@", ":")) if _STEM.fullmatch(stem) else stem


def model_id(name: str) -> str:
    """The shortest form of a name: without Ollama's registry and `library/`, without `:latest`."""
    for prefix in _REGISTRY:
        if name.lower().startswith(prefix):
            name = name[len(prefix) :]
    model, tag = _parted(name)
    return model if tag.lower() == DEFAULT_TAG else name


def full_name(name: str) -> str:
    """The name as Ollama's lists show it, always with a tag."""
    short = model_id(name)
    return short if _parted(short)[1] else f"{short}:{DEFAULT_TAG}"


def key_of(name: str) -> str:
    """What is equal for all ways to say one name."""
    return full_name(name).casefold()


def _parted(name: str) -> tuple[str, str]:
    """Everything before the tag, and the tag; a colon of a host's port is no tag."""
    folder, slash, last = name.rpartition("/")
    model, _, tag = last.partition(":")
    return folder + slash + model, tag
