"""Embeddings in OpenAI's shape: what is read, what is refused, and the exact bytes of a vector."""

import json
import math
from typing import Any

import pytest

from pocketserver.chat import Embeddings
from pocketserver.errors import Code, Refusal
from pocketserver.wire.openai_embeddings import Asked, document, parse


def read(data: bytes, warnings: list[str] | None = None) -> Asked:
    told = [] if warnings is None else warnings
    return parse(data, warn=lambda field, what: told.append(f"{field}:{what}"))


def ask(warnings: list[str] | None = None, **fields: Any) -> Asked:
    return read(json.dumps({"model": "m", "input": "hi", **fields}).encode(), warnings)


async def answer(*vectors: tuple[float, ...], **fields: Any) -> dict[str, Any]:
    asked = ask(input=["x"] * len(vectors), **fields)
    body = await document(Embeddings(vectors=vectors, prompt_tokens=3), asked, model="nomic", extra={})
    found: dict[str, Any] = json.loads(body)
    return found


@pytest.mark.parametrize(
    "wrong",
    [None, [], 5, True, {}, [None], [True], [["a"]], {"content": [{"type": "image_url"}]}, ["a", {}], ["x"] * 2049],
)
def test_an_input_that_is_neither_text_nor_texts_is_refused(wrong: Any) -> None:
    with pytest.raises(Refusal) as caught:
        ask(input=wrong)
    assert (caught.value.code, caught.value.param) == (Code.INVALID_PARAMETER, "input")


def test_a_missing_input_is_refused_as_a_wrong_one_is() -> None:
    with pytest.raises(Refusal, match="missing") as caught:
        read(b'{"model":"m"}')
    assert (caught.value.code, caught.value.param) == (Code.INVALID_PARAMETER, "input")


@pytest.mark.parametrize("tokens", [[1, 2, 3], [[1, 2], [3]], ["a", 5]])
def test_token_ids_are_refused_in_words_that_help_their_senders(tokens: Any) -> None:
    with pytest.raises(Refusal, match="check_embedding_ctx_length=False") as caught:
        ask(input=tokens)
    assert (caught.value.code, caught.value.param) == (Code.INVALID_PARAMETER, "input")


@pytest.mark.parametrize("wrong", ["", [""], ["a", ""]])
def test_an_empty_text_is_refused_with_its_place(wrong: Any) -> None:
    with pytest.raises(Refusal, match=rf"`input\[{len(wrong) - 1 if isinstance(wrong, list) else 0}\]` is empty"):
        ask(input=wrong)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("encoding_format", "hex"),
        ("encoding_format", 5),
        ("dimensions", 0),
        ("dimensions", -1),
        ("dimensions", "8"),
        ("dimensions", 1.5),
        ("model", 5),
    ],
)
def test_a_bad_value_names_its_field(field: str, value: Any) -> None:
    with pytest.raises(Refusal) as caught:
        ask(**{field: value})
    assert (caught.value.code, caught.value.param) == (Code.INVALID_PARAMETER, field)


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"", Code.INVALID_JSON), (b'{"input":"\xff"}', Code.INVALID_JSON), (b"[]", Code.MALFORMED_REQUEST)],
)
def test_a_broken_body_has_the_code_of_its_fault(body: bytes, code: Code) -> None:
    with pytest.raises(Refusal) as caught:
        read(body)
    assert caught.value.code is code


def test_a_text_is_a_list_of_one_and_2048_are_allowed() -> None:
    assert ask().inputs == ("hi",)
    assert len(ask(input=["x"] * 2048).inputs) == 2048


def test_null_means_absent() -> None:
    assert ask(encoding_format=None, dimensions=None) == ask()
    assert not ask().in_base64


def test_what_is_ignored_is_named() -> None:
    warnings: list[str] = []
    ask(warnings, user="me", input_type="query", truncate="END", stream=True, task=None)

    assert [warning.partition(":")[0] for warning in warnings] == ["stream", "user", "input_type", "truncate"]


async def test_a_document_is_the_contracts() -> None:
    assert await answer((0.6, -0.8)) == {
        "object": "list",
        "model": "nomic",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.6, -0.8]}],
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }


async def test_base64_is_little_endian_float32_with_padding() -> None:
    found = await answer((1.0, -2.0), (0.0, 1.0), encoding_format="base64")

    assert [entry["embedding"] for entry in found["data"]] == ["AACAPwAAAMA=", "AAAAAAAAgD8="]
    assert [entry["index"] for entry in found["data"]] == [0, 1]


async def test_fewer_dimensions_are_the_first_ones_with_length_one_again() -> None:
    vector = (await answer((0.48, 0.64, 0.6), dimensions=2))["data"][0]["embedding"]

    assert vector == pytest.approx([0.6, 0.8])
    assert math.hypot(*vector) == pytest.approx(1)
    assert (await answer((0.6, 0.8), dimensions=2))["data"][0]["embedding"] == [0.6, 0.8]
    assert (await answer((0.0, 1.0), dimensions=1))["data"][0]["embedding"] == [0.0]


async def test_more_dimensions_than_the_model_has_are_refused_with_its_number() -> None:
    with pytest.raises(Refusal, match="2 numbers") as caught:
        await answer((0.6, 0.8), dimensions=3)
    assert caught.value.param == "dimensions"


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
async def test_what_is_no_number_is_an_error_and_never_broken_json(broken: float) -> None:
    with pytest.raises(Refusal, match=r"input\[1\]") as caught:
        await answer((0.6, 0.8), (broken, 0.0))
    assert caught.value.code is Code.GENERATION_FAILED
