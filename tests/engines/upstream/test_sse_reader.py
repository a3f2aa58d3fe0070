"""Streams of other servers are read to the last word, however they end their lines and cut their packets."""

import pytest

from pocketserver.engines.upstream.sse_reader import MAX_EVENT_BYTES, SseReader, TooLongError

EXPECTED = ['{"text":"a😀"}'.encode(), b"[DONE]"]
DIALECTS = {
    "line feeds": b'data: {"text":"a\xf0\x9f\x98\x80"}\n\ndata: [DONE]\n\n',
    "carriage return and line feed": b'data: {"text":"a\xf0\x9f\x98\x80"}\r\n\r\ndata: [DONE]\r\n\r\n',
    "carriage returns": b'data: {"text":"a\xf0\x9f\x98\x80"}\r\rdata: [DONE]\r\r',
    "no blank": b'data:{"text":"a\xf0\x9f\x98\x80"}\n\ndata:[DONE]\n\n',
    "comments": b': hi\n\n: there\ndata: {"text":"a\xf0\x9f\x98\x80"}\n: so\n\ndata: [DONE]\n\n',
    "other fields": b'event: chunk\nid: 3\nretry: 5\ndata: {"text":"a\xf0\x9f\x98\x80"}\n\ndata: [DONE]\n\n',
    "a byte order mark": b'\xef\xbb\xbfdata: {"text":"a\xf0\x9f\x98\x80"}\n\ndata: [DONE]\n\n',
    "no empty line at the end": b'data: {"text":"a\xf0\x9f\x98\x80"}\n\ndata: [DONE]',
}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_in_pieces_of_every_size(dialect: str, size: int) -> None:
    reader = SseReader()
    data = DIALECTS[dialect]
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    events = [event for piece in pieces for event in reader.feed(piece)]
    assert [*events, *reader.finish()] == EXPECTED


def test_several_data_lines_are_one_event() -> None:
    assert SseReader().feed(b'data: {"a":\ndata: 1}\n\n') == [b'{"a":\n1}']


@pytest.mark.parametrize("data", [b"data: " + b"x" * (MAX_EVENT_BYTES + 1), b"data: " + b"x" * 1000 + b"\n"])
def test_nothing_grows_without_bound(data: bytes) -> None:
    reader = SseReader()

    def feed_for_ever() -> None:
        while True:
            reader.feed(data)

    with pytest.raises(TooLongError):
        feed_for_ever()
