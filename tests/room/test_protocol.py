"""Messages become frames and messages again; whatever is no message is refused, whatever is unknown is passed over."""

from collections.abc import Callable
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketserver.chat import Finished, FinishReason, GenerationRequest, Message, Role, TextDelta, Usage
from pocketserver.errors import Code, Refusal
from pocketserver.room import protocol
from pocketserver.room.protocol import (
    Accepted,
    Announcement,
    ApiClients,
    Ask,
    Cancel,
    Challenge,
    Count,
    Counted,
    Events,
    FromGuest,
    FromHost,
    Goodbye,
    Heartbeat,
    Hello,
    MalformedError,
    Proof,
    Queued,
    Refused,
    Welcome,
    Working,
    encode,
)
from pocketserver.room.request_check import check
from pocketserver.room.seat import event_frames

NUMBER = st.integers(0, 2**53)
TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
NAME = st.text(st.characters(codec="utf-8"), min_size=1, max_size=64)
BYTES = st.binary(min_size=32, max_size=32)
REQUEST = st.builds(
    GenerationRequest,
    id=TEXT,
    model=TEXT,
    messages=st.lists(st.builds(Message, role=st.sampled_from(list(Role)), content=TEXT), max_size=3).map(tuple),
    max_tokens=st.integers(0, 10_000),
)
EVENT = st.one_of(
    st.builds(TextDelta, text=TEXT),
    st.builds(
        Finished,
        reason=st.sampled_from(list(FinishReason)),
        usage=st.builds(Usage, prompt_tokens=NUMBER, completion_tokens=NUMBER),
    ),
)
GUESTS = st.one_of(
    st.builds(Hello, version=NUMBER, room=st.text(max_size=16), name=NAME, nonce=BYTES),
    st.builds(Proof, mac=BYTES),
    st.builds(Ask, id=NUMBER, request=REQUEST),
    st.builds(Count, id=NUMBER, request=REQUEST),
    st.builds(Cancel, id=NUMBER),
    st.just(Heartbeat()),
)
HOSTS = st.one_of(
    st.builds(Challenge, version=NUMBER, nonce=BYTES),
    st.builds(Welcome, mac=BYTES, name=NAME, you=NAME),
    st.builds(Announcement, model=st.none() | TEXT, context_size=st.none() | NUMBER, ready=st.booleans()),
    st.builds(ApiClients, allowed=st.booleans(), reason=TEXT),
    st.builds(Queued, id=NUMBER, position=NUMBER),
    st.builds(Working, id=NUMBER),
    st.builds(Accepted, id=NUMBER),
    st.builds(Events, id=NUMBER, events=st.lists(EVENT, max_size=4)),
    st.builds(Counted, id=NUMBER, tokens=NUMBER),
    st.builds(Refused, id=NUMBER, code=st.sampled_from(list(Code)).map(str), message=TEXT, param=st.none() | TEXT),
    st.builds(Goodbye, reason=st.text(max_size=64), message=TEXT),
    st.just(Heartbeat()),
)


@given(GUESTS)
def test_what_a_guest_says_arrives(message: object) -> None:
    assert protocol.from_guest(encode(message)) == message


@given(HOSTS)
def test_what_a_host_says_arrives(message: object) -> None:
    assert protocol.from_host(encode(message)) == message


def outcome(read: Callable[[bytes], object], frame: bytes) -> str:
    """`malformed`, or the kind of what was read; any other exception comes through."""
    try:
        return type(read(frame)).__name__
    except MalformedError as error:
        return "malformed" if len(str(error)) <= 200 else "quotes too much"


KINDS = {"malformed", "NoneType", *(kind.__name__ for side in (FromGuest, FromHost) for kind in get_args(side))}


@given(st.binary(max_size=200))
def test_random_bytes_are_a_message_or_malformed_or_unknown_and_nothing_else(frame: bytes) -> None:
    assert {outcome(protocol.from_guest, frame), outcome(protocol.from_host, frame)} <= KINDS


@given(GUESTS | HOSTS, st.data())
def test_so_are_messages_with_a_changed_byte(message: object, data: st.DataObject) -> None:
    frame = bytearray(encode(message))
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    assert {outcome(protocol.from_guest, bytes(frame)), outcome(protocol.from_host, bytes(frame))} <= KINDS


def test_types_of_a_later_version_are_passed_over_and_new_fields_too() -> None:
    later = msgspec.msgpack.encode({"type": "sing", "song": [1, 2, {"a": b"\x00"}]})
    assert protocol.from_guest(later) is None
    assert protocol.from_host(later) is None
    richer = msgspec.msgpack.encode({"type": "cancel", "id": 7, "because": "bored"})
    assert protocol.from_guest(richer) == Cancel(id=7)


def test_a_word_of_the_other_side_is_as_good_as_unknown() -> None:
    assert protocol.from_guest(encode(Accepted(id=1))) is None
    assert protocol.from_host(encode(Cancel(id=1))) is None


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([]),
        msgspec.msgpack.encode({"id": 1}),
        msgspec.msgpack.encode({"type": 5}),
        msgspec.msgpack.encode({"type": "cancel"}),
        msgspec.msgpack.encode({"type": "cancel", "id": -1}),
        msgspec.msgpack.encode({"type": "cancel", "id": "1"}),
        msgspec.msgpack.encode({"type": "proof", "mac": b"short"}),
        b"\x82\xa4type\xa6cancel\xa2id\xa2\xff\xfe",
        msgspec.msgpack.encode({"type": "ask", "id": 1, "request": {"id": "x"}}),
        b"\x82\xa4type\xa3ask\xa2id" + b"\x91" * 100_000,
    ],
)
def test_what_cannot_be_is_malformed(frame: bytes) -> None:
    with pytest.raises(MalformedError):
        protocol.from_guest(frame)


def test_a_large_batch_goes_out_in_several_frames_that_a_guest_reads() -> None:
    batch = [TextDelta(text="word " * 200_000) for _ in range(20)]

    frames = event_frames(3, batch)

    assert len(frames) > 1
    assert all(len(frame) < protocol.MAX_HOST_FRAME_BYTES for frame in frames)
    read = [
        event for frame in frames if isinstance(found := protocol.from_host(frame), Events) for event in found.events
    ]
    assert read == batch


def test_a_refusal_of_a_later_version_is_a_failure() -> None:
    message = protocol.from_host(encode(Refused(id=1, code="moon_too_full", message="Wait.")))
    assert isinstance(message, Refused)
    assert message.refusal().code is Code.GENERATION_FAILED


@given(st.text(max_size=400))
def test_the_text_of_a_closing_frame_is_short_and_whole(text: str) -> None:
    closing = protocol.closing_text(text.encode("utf-8", "replace").decode())
    assert len(closing) <= protocol.MOST_REASON_BYTES
    closing.decode()


def asked(**changes: object) -> GenerationRequest:
    request = GenerationRequest(id="1", model="m", messages=(Message(role=Role.USER, content="hi"),))
    return msgspec.structs.replace(request, **changes)  # type: ignore[arg-type]


def test_an_ordinary_request_passes_the_check() -> None:
    check(asked())
    check(asked(messages=(), prompt="once upon a time"))


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_tokens": 10**15}, "max_tokens"),
        ({"top_logprobs": 10_000}, "top_logprobs"),
        ({"reasoning_budget": -1}, "reasoning_budget"),
        ({"prompt": "both"}, "messages"),
        ({"messages": ()}, "messages"),
        ({"prompt_tokens": (-1,)}, "prompt"),
        ({"stop": ("x",) * 5000}, "stop"),
        ({"template_arguments": {"when": b"bytes"}}, "tools"),
        ({"template_arguments": {1: "a number for a name"}}, "tools"),
        ({"template_arguments": {"x": float("nan")}}, "tools"),
    ],
)
def test_what_no_client_may_ask_for_is_refused_with_its_field(changes: dict[str, object], param: str) -> None:
    with pytest.raises(Refusal) as caught:
        check(asked(**changes))
    assert (caught.value.code, caught.value.param) == (Code.INVALID_PARAMETER, param)


@pytest.mark.parametrize(
    "sampling",
    [{"temperature": float("nan")}, {"temperature": -1.0}, {"top_p": 7.0}, {"logit_bias": ((1, float("inf")),)}],
)
def test_sampling_out_of_range_is_refused(sampling: dict[str, object]) -> None:
    with pytest.raises(Refusal):
        check(asked(sampling=msgspec.structs.replace(asked().sampling, **sampling)))  # type: ignore[arg-type]
