"""The bytes of completions: the contract's documents and streams, and scores as parallel arrays."""

from collections.abc import Sequence
from typing import Any

import msgspec

from pocketserver.chat import (
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    ReasoningDelta,
    TextDelta,
    TokenScore,
    ToolCallStarted,
    Usage,
)
from pocketserver.wire.openai_completions_answer import Chunks, Document


def asked(prompt: str = "Hello", **fields: Any) -> GenerationRequest:
    return GenerationRequest(id="4", model="tiny", prompt=prompt, **fields)


def end(prompt_tokens: int = 1, completion_tokens: int = 1, reason: FinishReason = FinishReason.STOP) -> Finished:
    return Finished(reason=reason, usage=Usage(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens))


def score(token: str | bytes, logprob: float = -0.5, *top: TokenScore, is_first: bool = False) -> TokenScore:
    data = token if isinstance(token, bytes) else token.encode()
    text = data.decode(errors="replace")
    return TokenScore(token=text, logprob=logprob, bytes=data, top=top, is_first=is_first)


def streamed(
    events: Sequence[Event], *requests: GenerationRequest, choices: int = 1, include_usage: bool = False
) -> bytes:
    chunks = Chunks(
        requests or [asked()], choices=choices, created=1790000000, model="tiny", include_usage=include_usage
    )
    return chunks.first + b"".join(map(chunks.render, events)) + chunks.last


def whole(events: Sequence[Event], *requests: GenerationRequest, choices: int = 1, **extra: Any) -> dict[str, Any]:
    document = Document(requests or [asked()], choices=choices, created=1790000000, model="tiny", extra=extra)
    for event in events:
        document.add(event)
    found: dict[str, Any] = msgspec.json.decode(document.encode())
    return found


def test_a_document_is_the_contracts() -> None:
    assert whole([TextDelta(text=" world"), end()]) == {
        "id": "cmpl-4",
        "object": "text_completion",
        "created": 1790000000,
        "model": "tiny",
        "system_fingerprint": None,
        "choices": [{"index": 0, "text": " world", "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def test_a_stream_is_the_contracts_byte_for_byte() -> None:
    head = b'data: {"id":"cmpl-4","object":"text_completion","created":1790000000,"model":"tiny"'
    assert streamed([TextDelta(text=" wor"), TextDelta(text="ld"), end()]) == (
        head + b',"choices":[{"index":0,"text":" wor","logprobs":null,"finish_reason":null}]}\n\n'
        + head + b',"choices":[{"index":0,"text":"ld","logprobs":null,"finish_reason":null}]}\n\n'
        + head + b',"choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}]}\n\n'
        b"data: [DONE]\n\n"
    )  # fmt: skip


def test_usage_is_null_in_each_chunk_and_whole_in_the_last() -> None:
    lines = streamed([TextDelta(text="x"), end(3, 2)], include_usage=True).split(b"\n\n")

    assert all(line.endswith(b',"usage":null}') for line in lines[:2])
    assert lines[2].endswith(b'"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}')
    assert lines[3] == b"data: [DONE]"


def test_choices_are_numbered_prompt_by_prompt_and_each_prompt_counts_once() -> None:
    events: list[Event] = [e for n in range(4) for e in (TextDelta(text=str(n)), end(10 if n < 2 else 5, 1))]
    requests = (asked("a"), asked("b"))
    found = whole(events, *requests, choices=2)

    assert [(choice["index"], choice["text"]) for choice in found["choices"]] == [
        (0, "0"),
        (1, "1"),
        (2, "2"),
        (3, "3"),
    ]
    assert found["usage"] == {"prompt_tokens": 15, "completion_tokens": 4, "total_tokens": 19}
    lines = [msgspec.json.decode(line[6:]) for line in streamed(events, *requests, choices=2).split(b"\n\n")[:-2]]
    assert [line["choices"][0]["index"] for line in lines] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_scores_are_parallel_arrays_that_count_from_the_prompts_start() -> None:
    world = score(" world", -0.2, score(" world", -0.2), score(" there", -2.0))
    mark = score("!", -1.1, score("!", -1.1))
    found = whole([TextDelta(text=" world!", scores=(world, mark)), end()], asked("Hello", top_logprobs=2))

    assert found["choices"][0]["logprobs"] == {
        "tokens": [" world", "!"],
        "token_logprobs": [-0.2, -1.1],
        "top_logprobs": [{" world": -0.2, " there": -2.0}, {"!": -1.1}],
        "text_offset": [5, 11],
    }


def test_an_echo_counts_from_nought_and_its_first_token_has_no_score() -> None:
    echoed = TextDelta(text="Hello", tokens=0, scores=(score("Hel", is_first=True), score("lo", -1.0)))
    events: list[Event] = [echoed, TextDelta(text="!", scores=(score("!", -2.0),)), end()]
    found = whole(events, asked("Hello", echo=True, top_logprobs=0))["choices"][0]

    assert found["text"] == "Hello!"
    assert found["logprobs"]["token_logprobs"] == [None, -1.0, -2.0]
    assert found["logprobs"]["top_logprobs"] == [None, {"lo": -1.0}, {"!": -2.0}]
    assert found["logprobs"]["text_offset"] == [0, 3, 5]


def test_the_token_that_was_drawn_is_among_the_alternatives_though_it_was_unlikely() -> None:
    drawn = score("x", -9.0, score("a", -0.1), score("b", -3.0))
    found = whole([TextDelta(text="x", scores=(drawn,)), end()], asked(top_logprobs=2))

    assert found["choices"][0]["logprobs"]["top_logprobs"] == [{"a": -0.1, "b": -3.0, "x": -9.0}]


def test_pieces_of_characters_are_spelt_as_bytes_and_stand_where_the_character_does() -> None:
    pieces = (score(b"\xe2\x80"), score(b"\x9c"), score("é"), score("z"))
    found = whole([TextDelta(text="“éz", scores=pieces), end()], asked("né", top_logprobs=0))["choices"][0]["logprobs"]

    assert found["tokens"] == ["bytes:\\xe2\\x80", "bytes:\\x9c", "é", "z"]
    assert found["text_offset"] == [2, 2, 3, 4]


def test_streamed_scores_go_on_where_the_chunk_before_ended_and_begin_anew_with_each_choice() -> None:
    events: list[Event] = [
        TextDelta(text="ab", scores=(score("ab"),)),
        TextDelta(text="c", scores=(score("c"),)),
        TextDelta(text="d"),
        end(),
        TextDelta(text="x", scores=(score("x"),)),
        end(),
    ]
    data = streamed(events, asked("Hello", top_logprobs=0), asked("Hi", top_logprobs=0))
    scores = [msgspec.json.decode(line[6:])["choices"][0]["logprobs"] for line in data.split(b"\n\n")[:-2]]

    assert [found and found["text_offset"] for found in scores] == [[5], [7], None, None, [2], None]


def test_an_answer_without_text_has_empty_arrays() -> None:
    found = whole([end(1, 0, FinishReason.LENGTH)], asked(top_logprobs=0))["choices"][0]

    assert found["text"] == ""
    assert found["finish_reason"] == "length"
    assert found["logprobs"] == {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def test_an_infinite_score_stays_a_number() -> None:
    found = whole([TextDelta(text="x", scores=(score("x", float("-inf")),)), end()], asked(top_logprobs=0))

    assert found["choices"][0]["logprobs"]["token_logprobs"] == [-9999.0]


def test_thoughts_and_calls_have_no_place_in_plain_text() -> None:
    events: list[Event] = [
        ReasoningDelta(text="hm"),
        ToolCallStarted(index=0, id="c", name="f"),
        TextDelta(text="x"),
        end(reason=FinishReason.TOOL_CALLS),
    ]

    assert whole(events)["choices"][0] == {"index": 0, "text": "x", "logprobs": None, "finish_reason": "stop"}
    assert b"hm" not in streamed(events)


def test_what_was_not_done_stands_beside_the_answer() -> None:
    assert whole([end()], warnings=["x:ignored"])["warnings"] == ["x:ignored"]
