"""An engine that answers from recordings: the same events in the same batches at the same times, as the clock runs."""

import asyncio
import difflib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from pocketserver.chat import Event, GenerationRequest, JsonValue, TextDelta
from pocketserver.engines.recording import RecordedBatch, Recording, Redact, redacted_request
from pocketserver.engines.sim.device import DevicePreset, SimModel
from pocketserver.engines.sim.engine import SimEngine, SimOptions
from pocketserver.engines.sim.state import Device
from pocketserver.engines.sim.stream import Interruption, Pause, SimStream
from pocketserver.errors import Code, Refusal, StartupError

MOST_RECORDINGS = 20_000
MOST_FILE_BYTES = 64 * 1024 * 1024
_MOST_COMPARED = 200
_COMPARED_CHARACTERS = 2000
_SHOWN_CHARACTERS = 60
_UNMATCHED_FIELDS = ("id", "whole", "model")
"""What does not decide whether a recording answers a request: the server's own ids, how the answer is read, and the
model's name, which the server has resolved already."""


def load_recordings(folder: Path) -> list[tuple[str, Recording]]:
    """Every recording of a folder with its file's name, oldest first. Raises StartupError that names the file."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".json" and not path.name.startswith("."))
    except OSError as error:
        raise StartupError(f"The recordings in {folder} cannot be read: {error.strerror}.") from error
    if not paths:
        raise StartupError(f"No recordings are in {folder}. Make some with `pocketserver serve --record {folder}`.")
    if len(paths) > MOST_RECORDINGS:
        raise StartupError(f"{folder} holds {len(paths):,} recordings; at most {MOST_RECORDINGS:,} are replayed.")
    return [(path.name, _read(path)) for path in paths]


def _read(path: Path) -> Recording:
    try:
        if path.stat().st_size > MOST_FILE_BYTES:
            raise StartupError(f"{path} is larger than any recording. Move it out of the folder.")
        return msgspec.json.decode(path.read_bytes(), type=Recording)
    except OSError as error:
        raise StartupError(f"The recording {path} cannot be read: {error.strerror}.") from error
    except msgspec.ValidationError as error:
        raise StartupError(f"{path} is no recording of this server ({error}). Move it out of the folder.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StartupError(f"The recording {path} is damaged ({error}). Remove it, or record it again.") from error


@dataclass(slots=True)
class Library:
    """Recordings by what was asked. Asked the same again, they come in the order of recording; the last one stays."""

    recordings: Sequence[tuple[str, Recording]]
    redact: Redact
    _by_request: dict[bytes, list[Recording]] = field(default_factory=dict)
    _taken: dict[bytes, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for _, recording in self.recordings:
            self._by_request.setdefault(_key(recording.request), []).append(recording)

    def take(self, request: GenerationRequest) -> Recording | None:
        key = _key(redacted_request(request, self.redact))
        found = self._by_request.get(key)
        if found is None:
            return None
        number = self._taken[key] = self._taken.get(key, -1) + 1
        return found[min(number, len(found) - 1)]

    def rewind(self) -> None:
        self._taken.clear()

    def unmatched(self, request: GenerationRequest) -> Refusal:
        """The refusal of a request that was never recorded: it shows the nearest one and the first difference."""
        asked = _plain(redacted_request(request, self.redact))
        text = _text(asked)
        compared = self.recordings[-_MOST_COMPARED:]
        name, nearest = max(compared, key=lambda pair: _likeness(text, _text(_plain(pair[1].request))))
        place, recorded, given = next(_differences("", _plain(nearest.request), asked), ("", None, None))
        return Refusal(
            Code.INVALID_PARAMETER,
            f"No recording matches this request. The nearest is {name}; it differs in `{place}`: recorded "
            f"{_shown(recorded)}, asked {_shown(given)}. Record this request, or start with --replay-fallback.",
            param=place or None,
        )


def _plain(request: GenerationRequest) -> Mapping[str, JsonValue]:
    fields: dict[str, JsonValue] = msgspec.json.decode(msgspec.json.encode(request))
    return {name: value for name, value in fields.items() if name not in _UNMATCHED_FIELDS}


def _key(request: GenerationRequest) -> bytes:
    return msgspec.json.encode(_plain(request), order="deterministic")


def _text(plain: Mapping[str, JsonValue]) -> str:
    return msgspec.json.encode(plain).decode()[:_COMPARED_CHARACTERS]


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other, autojunk=False).quick_ratio()


def _differences(place: str, recorded: JsonValue, given: JsonValue) -> Iterator[tuple[str, JsonValue, JsonValue]]:
    """Every place at which two JSON values differ, in order: its path and both values, None for what is absent."""
    if isinstance(recorded, dict) and isinstance(given, dict):
        for name in {**recorded, **given}:
            inner = f"{place}.{name}" if place else name
            yield from _differences(inner, recorded.get(name), given.get(name))
    elif isinstance(recorded, list) and isinstance(given, list):
        for index, (one, other) in enumerate(itertools.zip_longest(recorded, given)):
            yield from _differences(f"{place}[{index}]", one, other)
    elif recorded != given:
        yield place, recorded, given


def _shown(value: JsonValue) -> str:
    if value is None:
        return "nothing"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


class ReplayEngine(SimEngine):
    """A simulated device that says what was recorded. Its rules and prose answer the rest, when `fallback` is set."""

    def __init__(self, library: Library, *, fallback: bool, speed: float | None, seed: int = 0) -> None:
        self._library = library
        self._fallback = fallback
        preset = _preset([recording for _, recording in library.recordings])
        largest = max(model.context_size for model in preset.models)
        super().__init__(
            SimOptions(model=preset.models[0].id, context_size=largest, seed=seed, preset=preset, speed=speed)
        )

    def reset(self) -> None:
        super().reset()
        self._library.rewind()

    async def accept(self, request: GenerationRequest) -> SimStream:
        recording = self._library.take(request)
        if recording is None and self._fallback:
            return await super().accept(request)
        if recording is None:
            raise await asyncio.to_thread(self._library.unmatched, request)
        answer = RecordedAnswer(recording, self.device, self.interruptions.pop(request.id, None))
        stream = SimStream(answer)
        await answer.wait(recording.accepted_seconds, stream.pause)
        if recording.refusal is not None and not recording.batches:
            raise recording.refusal.refusal()
        return stream


class RecordedAnswer:
    """One recording on its way. Times count from the moment the engine accepted it."""

    def __init__(self, recording: Recording, device: Device, interruption: Interruption | None) -> None:
        self._recording = recording
        self._device = device
        self._interruption = interruption
        self._batches = iter(recording.batches if interruption is None else _one_by_one(recording.batches))
        self._due = device.clock.now()
        self._passed = 0.0
        self._tokens = 0
        self._opening = "" if interruption is None else interruption.opening
        self._over = False

    async def wait(self, seconds: float, pause: Pause) -> None:
        """Let device time pass. Times add up from the start, so that waking up late once slows nothing down."""
        clock = self._device.clock
        self._due += seconds
        if clock.virtual:
            clock.advance(seconds)
        elif (real := clock.real_seconds(self._due)) > 0:
            await pause(real)

    async def next_batch(self, pause: Pause) -> Sequence[Event] | None:
        """The next events, once they are due; None after the last. Raises what broke the recorded answer off."""
        if self._over:
            return None
        batch = next(self._batches, None)
        if self._interruption is not None:
            await self._interruption.reached(self._tokens, pause, ended=batch is None)
        if batch is None:
            await self._end(pause)
            return None
        await self._until(batch.at, pause)
        self._tokens += sum(getattr(event, "tokens", 0) for event in batch.events)
        opening, self._opening = self._opening, ""
        return [TextDelta(text=opening), *batch.events] if opening else batch.events

    async def _end(self, pause: Pause) -> None:
        self._over = True
        if self._recording.refusal is not None:
            await self._until(self._recording.refused_at, pause)
            raise self._recording.refusal.refusal()

    async def _until(self, at: float, pause: Pause) -> None:
        await self.wait(max(0.0, at - self._passed), pause)
        self._passed = max(self._passed, at)


def _one_by_one(batches: Sequence[RecordedBatch]) -> Iterator[RecordedBatch]:
    """An event a batch, for what happens between two tokens."""
    return (RecordedBatch(at=batch.at, events=[event]) for batch in batches for event in batch.events)


def _preset(recordings: Sequence[Recording]) -> DevicePreset:
    """A device with the recorded models on it, the latest one first."""
    sizes: dict[str, int] = {}
    for recording in reversed(recordings):
        sizes.setdefault(recording.request.model, recording.context_size or 8192)
    models = tuple(SimModel(id=name, context_size=max(16, size)) for name, size in sizes.items())
    return DevicePreset(
        name="replay", summary="a device that says what was recorded", memory_limit_bytes=1 << 50, models=models
    )
