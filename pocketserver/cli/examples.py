"""An example or two for each command's `--help`. Data alone, so that it costs nothing to import."""

from collections.abc import Mapping

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "serve": (
        "pocketserver serve",
        "pocketserver serve --model ~/Downloads/model.gguf --context 4096 --port 9000",
        "pocketserver serve --plain --host 127.0.0.1",
    ),
    "sim": ("pocketserver sim serve --device iphone-16-pro", "pocketserver sim set thermal=serious"),
    "sim serve": ("pocketserver sim serve --port 0 --ready-json - --speed max",),
    "sim status": ("pocketserver sim status --json",),
    "sim set": ("pocketserver sim set thermal=serious low_power=true",),
    "sim fault": ("pocketserver sim fault model_busy retry_after=0.5",),
    "sim rule": ('pocketserver sim rule "The answer is 42."',),
    "sim requests": ("pocketserver sim requests --json",),
    "sim reset": ("pocketserver sim reset",),
    "sim advance": ("pocketserver sim advance 60",),
    "sim play": ("pocketserver sim play overheating",),
    "sim faults": ("pocketserver sim faults",),
    "sim scenarios": ("pocketserver sim scenarios",),
    "sim devices": ("pocketserver sim devices",),
    "sim report": ("pocketserver sim report",),
    "status": ("pocketserver status", "pocketserver status --json --port 8080"),
    "stop": ("pocketserver stop", "pocketserver stop --server"),
    "join": ("pocketserver join 4TKG9P",),
    "room": ("pocketserver room guests",),
    "room guests": ("pocketserver room guests",),
    "room kick": ("pocketserver room kick laptop",),
    "room stop": ("pocketserver room stop",),
    "room close": ("pocketserver room close",),
    "room clients": ("pocketserver room clients off",),
    "models": ("pocketserver models list", "pocketserver models pull smollm2-135m-instruct"),
    "models list": ("pocketserver models list --json",),
    "models pull": ("pocketserver models pull smollm2-135m-instruct",),
    "models rm": ("pocketserver models rm smollm2-135m-instruct",),
    "models cp": ("pocketserver models cp smollm2-135m-instruct small",),
    "models create": ("pocketserver models create pirate -f Modelfile",),
    "models show": ("pocketserver models show smollm2-135m-instruct",),
    "models path": ("pocketserver models path smollm2-135m-instruct",),
    "key": ("pocketserver key show", "pocketserver key new phone"),
    "key show": ("pocketserver key show",),
    "key new": ("pocketserver key new phone", "pocketserver key new prometheus --scope metrics"),
    "key list": ("pocketserver key list",),
    "key revoke": ("pocketserver key revoke phone",),
    "page": ("pocketserver page",),
    "pair": ("pocketserver pair",),
    "qr": ("pocketserver qr", "pocketserver qr --pair --png code.png"),
    "discover": ("pocketserver discover", "pocketserver discover --follow --json"),
    "cache": ("pocketserver cache show", "pocketserver cache clear"),
    "cache show": ("pocketserver cache show --json",),
    "cache clear": ("pocketserver cache clear",),
    "tune": ("pocketserver tune --explain", "pocketserver tune --again"),
    "chat": (
        "pocketserver chat",
        "pocketserver chat http://192.168.1.20:8080/v1",
        'echo "Name three colours." | pocketserver chat',
    ),
    "doctor": ("pocketserver doctor", "pocketserver doctor --port 9000 --json"),
    "bench": ("pocketserver bench", "pocketserver bench http://127.0.0.1:8080/v1 --rounds 3"),
    "calibrate": ("pocketserver calibrate http://192.168.1.20:8080/v1",),
    "cluster": ("pocketserver cluster deploy --ray-replicas 2",),
    "cluster deploy": ("pocketserver cluster deploy --ray-replicas 2",),
    "cluster remove": ("pocketserver cluster remove",),
    "openapi": ("pocketserver openapi --profile hub",),
    "settings": ("pocketserver settings", "pocketserver settings --profile pooled --json"),
}
"""The words of a command, and what its help shows below its options."""


def epilog(words: str) -> str | None:
    """The examples of a command as the help prints them; None for one that has none."""
    lines = EXAMPLES.get(words)
    if lines is None:
        return None
    return "\n".join(("\b", "Example:" if len(lines) == 1 else "Examples:", *(f"  {line}" for line in lines)))
