"""Frames cross the pipe whole, or say that they cannot."""

import io

import pytest

from pocketserver.chat import GenerationRequest, JsonSchema, JsonValue, TextDelta
from pocketserver.engines.llama.frames import (
    LENGTH_BYTES,
    MAX_FRAME_BYTES,
    Cancel,
    Events,
    FrameError,
    Generate,
    body_length,
    decode_from_worker,
    encode,
    read_to_worker,
)


def test_frames_come_out_as_they_went_in() -> None:
    request = GenerationRequest(id="a", model="m", prompt="p", constraint=JsonSchema(schema={"type": "object"}))
    frames = [Generate(request=request), Cancel(id="a")]
    file = io.BytesIO(b"".join(map(encode, frames)))
    assert [read_to_worker(file), read_to_worker(file), read_to_worker(file)] == [*frames, None]
    events = Events(id="a", batch=(TextDelta(text="x"),))
    assert decode_from_worker(encode(events)[LENGTH_BYTES:]) == events


def test_half_a_frame_is_the_end() -> None:
    assert read_to_worker(io.BytesIO(encode(Cancel(id="abc"))[:-1])) is None


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x81\xa4type\xa7unknown"])
def test_what_is_no_frame_is_an_error(body: bytes) -> None:
    with pytest.raises(FrameError):
        decode_from_worker(body)


def test_a_length_beyond_any_frame_is_an_error() -> None:
    with pytest.raises(FrameError):
        body_length((MAX_FRAME_BYTES + 1).to_bytes(LENGTH_BYTES, "big"))


@pytest.mark.parametrize("huge", [10**40, None])
def test_what_msgpack_cannot_carry_is_an_error(huge: int | None) -> None:
    schema: JsonValue = {"maximum": huge}
    if huge is None:
        for _ in range(5000):
            schema = {"items": schema}
    with pytest.raises(FrameError):
        encode(Generate(request=GenerationRequest(id="a", model="m", constraint=JsonSchema(schema=schema))))
