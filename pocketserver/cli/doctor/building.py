"""llama.cpp: whether it is there, loads, suits the processor, crashed before, and could be built again."""

import importlib.metadata
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator

from pocketserver.assembly import model_store
from pocketserver.cli.doctor.finding import Finding, Level, Situation
from pocketserver.engines.llama import build_flags
from pocketserver.engines.llama.safe_mode import SafeModeMemory, combination

_COMPILERS = ("c++", "g++", "clang++", "cl")
_IMPORT_SECONDS = 25.0
_CHILD = (
    "import json, jinja2, llguidance, numpy\n"
    "from pocketserver.engines.llama import native\n"
    "native.quiet()\n"
    "print(json.dumps([native.version(), native.build()]))"
)
_INSTALL = (
    f'Install it (it compiles for some minutes): "{sys.executable}" -m pip install llama-cpp-python llguidance jinja2 '
    "numpy. Or use --engine sim."
)


def compiler_is_there(about: Situation) -> Iterator[Finding]:
    """Needed once, to install llama.cpp; pip brings CMake along where it is missing."""
    compiler = next((found for name in _COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        remedy = "Debian: `apt install g++`. macOS: `xcode-select --install`. Windows: the Visual Studio Build Tools."
        sentence = "There is no C++ compiler; llama.cpp cannot be built here (again)."
        yield Finding("compiler", Level.HINT, sentence, remedy)
    else:
        cmake = shutil.which("cmake")
        yield Finding("compiler", Level.OK, f"{compiler}, and {cmake or 'no CMake of its own (pip fetches one)'}.")


def llama_works(about: Situation) -> Iterator[Finding]:
    """Imported in a child, since a wrong build can end its process."""
    if about.settings.engine != "llama":
        yield Finding("llama.cpp", Level.OK, f"The engine {about.settings.engine} does without it.")
        return
    try:
        child = subprocess.run(
            [sys.executable, "-c", _CHILD],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=_IMPORT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        yield Finding(
            "llama.cpp", Level.BROKEN, f"It does not load within {_IMPORT_SECONDS:g} s.", "Is the disk hanging?"
        )
        return
    if child.returncode == 0:
        version, build = json.loads(child.stdout.splitlines()[-1])
        yield from _suits(version, build)
        yield from safe_mode(about, version, build)
    else:
        yield unloadable(child.returncode, child.stderr)


def unloadable(code: int, said: str) -> Finding:
    """Why the library cannot be used, from how the child that tried ended."""
    last = (said.strip().splitlines() or ["without a word"])[-1][:300]
    if code < 0:
        sentence = f"Loading it ended the process (signal {-code}): it was built for another processor."
        command = build_flags.rebuild_command(
            build_flags.this_machine(), importlib.metadata.version("llama-cpp-python")
        )
        return Finding("llama.cpp", Level.BROKEN, sentence, f"Build it again: {command}")
    if "ModuleNotFoundError" in last:
        return Finding("llama.cpp", Level.BROKEN, f"It is not installed ({last}).", _INSTALL)
    return Finding("llama.cpp", Level.BROKEN, f"It cannot be loaded: {last}", _INSTALL)


def _suits(version: str, build: str) -> Iterator[Finding]:
    machine = build_flags.this_machine()
    advice = build_flags.advice(build, machine)
    if not advice:
        yield Finding("llama.cpp", Level.OK, f"Version {version}, built for this processor.")
        return
    command = build_flags.rebuild_command(machine, version.split(maxsplit=1)[0])
    yield Finding(
        "llama.cpp", Level.HINT, f"Version {version} works. {' '.join(advice)}", f"Faster or safer: {command}"
    )


def safe_mode(about: Situation, version: str, build: str) -> Iterator[Finding]:
    """Whether the processor crashed with repacked weights (AMX on some virtual machines) with an installed model."""
    memory = SafeModeMemory(about.settings.home_folder / "llama")
    sound = [model for model in model_store(about.settings).list() if model.fault is None]
    build_key = f"{version}\n{build}"
    crashed = [
        model.id for model in sound if memory.holds(combination(model.path, model.path.stat().st_size, build_key))
    ]
    if crashed:
        command = build_flags.rebuild_command(build_flags.this_machine(), version.split(maxsplit=1)[0])
        sentence = f"{', '.join(crashed)} crashed with repacked weights (AMX), and is served in safe mode, slower."
        yield Finding("safe mode", Level.HINT, sentence, f"A build without AMX is as safe and faster: {command}")
    else:
        yield Finding("safe mode", Level.OK, "No installed model needs it.")
