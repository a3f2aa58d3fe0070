"""Changes a store in processes of their own: killed at every step, or as fast as it can beside another one."""

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from pocketserver.errors import Refusal, StartupError
from pocketserver.models.creation import carry_out, copy_model, plan_creation
from pocketserver.models.store import ModelStore
from pocketserver.models.stored import CreateSpec
from tests.models.gguf_builder import UINT32, key, write_model, write_split_model

STEPS = frozenset({"open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"})
LEFT = {".store.lock"}


def create(store: ModelStore, name: str, base: str, system: str) -> None:
    plan = plan_creation(CreateSpec(name=name, base=base, system=system), store, local_files=False)
    carry_out(plan, store, lambda _step: None, threading.Event())


CHANGES: dict[str, Callable[[ModelStore], object]] = {
    "create": lambda store: create(store, "new", "short", "S"),
    "replace": lambda store: create(store, "c1", "short", "S"),
    "over itself": lambda store: create(store, "c1", "c1", "S"),
    "copy split over single": lambda store: copy_model("big", "c1", store),
    "copy single over split": lambda store: copy_model("c1", "big", store),
    "remove": lambda store: store.remove("c1"),
    "remove split": lambda store: store.remove("big"),
}


def prepare(folder: Path) -> None:
    """`tiny` of 512 tokens, `short` of 256, `c1` over tiny, and a split model."""
    write_model(folder / "tiny.gguf")
    write_model(folder / "short.gguf", context_length=key("llama.context_length", UINT32, 256))
    write_split_model(folder, "big")
    create(ModelStore(folder), "c1", "tiny", "A")


def state(folder: Path) -> dict[str, list[object]]:
    return {
        model.id: [model.problem, model.settings.system, len(model.weights), model.checked().context_length]
        for model in ModelStore(folder).list()
    }


def kill_everywhere(parent: Path, name: str) -> None:
    """Kill the change before each of its steps in turn, and print what the store then shows, and what lies about."""
    whole, killed = parent / "whole", True
    prepare(whole)
    step = 0
    while killed:
        step += 1
        folder = parent / f"at-{step}"
        shutil.copytree(whole, folder)
        killed = _killed_at(step, folder, CHANGES[name])
        shown = state(folder)
        copy_model("tiny", "probe", ModelStore(folder))
        left = sorted({path.name for path in folder.iterdir() if path.name[0] == "."} - LEFT)
        print(json.dumps({"killed": killed, "before": state(whole), "shown": shown, "left": left}))
        shutil.rmtree(folder)


def _killed_at(step: int, folder: Path, change: Callable[[ModelStore], object]) -> bool:
    child = os.fork()
    if child == 0:
        store, taken = ModelStore(folder), 0

        def count(event: str, _arguments: object) -> None:
            nonlocal taken
            if event not in STEPS:
                return
            taken += 1
            if taken == step:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        change(store)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, f"the change failed: {status}"
    return os.WIFSIGNALED(status)


def hurry(folder: Path, times: int) -> None:
    """Make, copy and remove the same names again and again; what another process removed meanwhile is no fault."""
    store = ModelStore(folder)
    for number in range(times):
        base, system = (("tiny", "512"), ("short", "256"))[number % 2]
        for change in (
            lambda base=base, system=system: create(store, "shared", base, system),
            lambda: copy_model("shared", "copied", store),
            lambda: store.remove("copied"),
        ):
            try:
                change()
            except (Refusal, StartupError) as error:
                if not any(
                    words in str(error) for words in ("not found", "There is no model", "was changed by another")
                ):
                    raise


if __name__ == "__main__":
    if sys.argv[1] == "kill":
        kill_everywhere(Path(sys.argv[2]), sys.argv[3])
    else:
        hurry(Path(sys.argv[2]), int(sys.argv[3]))
