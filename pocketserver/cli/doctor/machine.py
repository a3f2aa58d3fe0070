"""Python, clock, disk, memory, and the models on disk."""

import datetime as dt
import os
import shutil
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pocketserver import run_file
from pocketserver.assembly import model_store
from pocketserver.cli.doctor.finding import Finding, Level, Situation, parted
from pocketserver.cli.servers import ask
from pocketserver.engines.llama.free_memory import available_memory
from pocketserver.engines.llama.memory import choose_context, memory_need
from pocketserver.errors import Refusal, StartupError
from pocketserver.gate import key_file
from pocketserver.models.catalog import CatalogEntry, load_catalog
from pocketserver.models.store import InstalledModel, resolve_model_argument

_OLDEST_PYTHON = (3, 11)
_MICRO_BATCH = 512
_FULL_BYTES = 32 << 20
"""Less than this and not even keys and logs can be relied on."""
_SCARCE_BYTES = 1 << 30
_MIB = 1 << 20
_YEAR_SECONDS = 365 * 86400


def settings_hold(about: Situation) -> Iterator[Finding]:
    for problem in about.problems:
        yield Finding("settings", Level.BROKEN, problem, "The rest was looked at with the usual settings.")
    if not about.problems:
        yield Finding("settings", Level.OK, "The settings are understood (`pocketserver settings` shows them).")


def python_fits(_about: Situation) -> Iterator[Finding]:
    version, bits = ".".join(map(str, sys.version_info[:3])), struct.calcsize("P") * 8
    if sys.version_info < _OLDEST_PYTHON or bits < 64:
        yield Finding("python", Level.BROKEN, f"This is Python {version}, {bits} bits.", "Use 3.11 or newer, 64 bits.")
    else:
        yield Finding("python", Level.OK, f"Python {version}.")


def clock_is_sane(_about: Situation) -> Iterator[Finding]:
    yield clock(time.time(), Path(__file__).stat().st_mtime)


def clock(now: float, installed: float) -> Finding:
    """Whether the time can be true: not before this program came here, not decades later. Unix seconds."""
    if installed - 86400 <= now <= installed + 20 * _YEAR_SECONDS:
        return Finding("clock", Level.OK, "The clock is plausible.")
    shown = dt.datetime.fromtimestamp(now, dt.UTC).date()
    return Finding(
        "clock",
        Level.WARNING,
        f"The clock says {shown}, which cannot be. Downloads over HTTPS fail with a wrong clock.",
        "Switch on the time service (Linux: `timedatectl set-ntp true`), or set the clock.",
    )


def disk_has_room(about: Situation) -> Iterator[Finding]:
    """The home folder and the folder of models, which may lie on another disk."""
    home = about.settings.home_folder
    folders = {"home folder": home, "models folder": home / "models"}
    seen: set[int] = set()
    for what, folder in folders.items():
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        device = existing.stat().st_dev
        if device not in seen:
            seen.add(device)
            yield _room(what, folder, existing)


def _room(what: str, folder: Path, existing: Path) -> Finding:
    free = shutil.disk_usage(existing).free
    shown = f"{free // _MIB:,} MiB are free for the {what} {folder}."
    if not os.access(existing, os.W_OK):
        remedy = "Make it yours, or choose another one with POCKETSERVER_HOME."
        return Finding("disk", Level.BROKEN, f"The {what} {folder} cannot be written.", remedy)
    if free < _FULL_BYTES:
        remedy = "Free some, or choose a folder on another disk with POCKETSERVER_HOME."
        return Finding("disk", Level.BROKEN, f"Only {shown}", remedy)
    if free < _SCARCE_BYTES:
        remedy = "Remove models (`pocketserver models rm`) or conversations on disk (`pocketserver cache clear`)."
        return Finding("disk", Level.WARNING, f"Only {shown} Models and kept conversations need more.", remedy)
    return Finding("disk", Level.OK, shown)


def models_are_sound(about: Situation) -> Iterator[Finding]:
    """Every file in the folders, and the model that a server would load."""
    if about.settings.engine != "llama":
        yield Finding("models", Level.OK, f"The engine {about.settings.engine} needs no model files.")
        return
    store = model_store(about.settings)
    broken = [model for model in store.list() if model.fault is not None]
    for model in broken:
        remedy = f"Remove it (`pocketserver models rm {model.id}`) and fetch it again."
        yield Finding("models", Level.WARNING, f"{model.path} is broken: {model.problem}", remedy)
    for sentence in store.skipped():
        yield Finding("models", Level.HINT, sentence, "Rename or remove it.")
    if not broken:
        yield Finding("models", Level.OK, f"Installed models: {len(store.list())}, none is broken.")


def memory_suffices(about: Situation) -> Iterator[Finding]:
    """The model that a server would load, against the memory that may be taken."""
    settings = about.settings
    if settings.engine != "llama" or any(server.engine == "llama" for server in about.running):
        yield Finding("memory", Level.OK, "No further model is to be loaded.")
        return
    try:
        catalog = load_catalog(settings.home_folder / "catalog.toml")
        found = resolve_model_argument(settings.model, model_store(settings), catalog)
    except StartupError as error:
        yield Finding("model", Level.BROKEN, *parted(error))
        return
    yield _to_fetch(found) if isinstance(found, CatalogEntry) else _fits(about, found)


def _to_fetch(entry: CatalogEntry) -> Finding:
    megabytes = entry.size_bytes // _MIB
    return Finding("memory", Level.OK, f"{entry.name} ({megabytes:,} MiB) will be fetched at the first start.")


def _fits(about: Situation, model: InstalledModel) -> Finding:
    metadata, available = model.checked(), available_memory(about.settings.memory_limit_bytes)
    try:
        context = choose_context(metadata, about.settings.context, available, _MICRO_BATCH)
    except Refusal as refusal:
        return Finding("memory", Level.BROKEN, *parted(refusal))
    needed = memory_need(metadata, context, _MICRO_BATCH).total_bytes
    usual = min(metadata.context_length or context, 8192)
    shown = f"{model.id} takes about {needed // _MIB:,} of {available // _MIB:,} MiB with {context} tokens of context."
    if about.settings.context is None and context < usual:
        remedy = "Close other programs, or choose a smaller model, for a longer context."
        return Finding("memory", Level.WARNING, shown, remedy)
    return Finding("memory", Level.OK, shown)


def keys_are_private(about: Situation) -> Iterator[Finding]:
    folder = about.settings.home_folder
    exposed = key_file.exposure(folder)
    if exposed is not None:
        sentence, _, remedy = exposed.partition(" Run: ")
        yield Finding("keys", Level.WARNING, sentence, f"Run: {remedy}")
    try:
        key_file.read(folder)
    except StartupError as error:
        yield Finding("keys", Level.BROKEN, *parted(error))
        return
    if exposed is None:
        yield Finding("keys", Level.OK, "The key file is private.")


def servers_answer(about: Situation) -> Iterator[Finding]:
    """The servers that run here, and what dead ones left behind."""
    if about.stale:
        number = len(about.stale)
        sentence = f"{number} server{'s' if number > 1 else ''} ended without clean-up; what was left is removed now."
        yield Finding(
            "servers", Level.HINT, sentence, "Nothing is to be done. Was the machine switched off, or memory short?"
        )
    for server in about.running:
        yield _answers(server)
    if not about.running and not about.stale:
        yield Finding("servers", Level.OK, "No server is running here.")


def _answers(server: run_file.RunningServer) -> Finding:
    try:
        status = ask(server, "GET", "/status")
    except StartupError as error:
        remedy = f"End the process {server.pid} and start it again; its log may say why."
        return Finding("servers", Level.BROKEN, f"A server runs but does not answer: {error}", remedy)
    state = str(status["state"])
    sentence = f"The server {server.pid} at {status['base_url']} is {state}."
    if state in {"stuck", "no_model"}:
        return Finding("servers", Level.BROKEN, f"{sentence} {status['problem'] or ''}".strip(), "See its log.")
    return Finding("servers", Level.OK, sentence)
