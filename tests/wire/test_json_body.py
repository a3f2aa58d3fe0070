"""Bodies with numbers that no wire of ours carries are read as other JSON readers do, or refused."""

from typing import Any

import msgspec
import pytest

from pocketserver.errors import Code, Refusal
from pocketserver.wire.json_body import decode


class Asked(msgspec.Struct):
    schema: dict[str, Any]
    seed: int | None = None
    text: str = ""


def read(body: str) -> Asked:
    return decode(body.encode(), Asked, required="schema")


@pytest.mark.parametrize(
    ("written", "read_as"),
    [
        (str(2**64 - 1), 2**64 - 1),
        (str(-(2**63)), -(2**63)),
        (str(2**64), 2.0**64),
        (f'[{{"a": {-(10**30)}}}]', [{"a": -1e30}]),
    ],
)
def test_integers_beyond_64_bits_are_read_as_floats(written: str, read_as: object) -> None:
    schema = read(f'{{"schema": {{"const": {written}}}, "seed": 7}}').schema

    assert schema == {"const": read_as}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(schema)) == schema


def test_many_short_numbers_stay_integers() -> None:
    numbers = list(range(1000, 1050))

    assert read(f'{{"schema": {{"enum": {numbers}}}}}').schema == {"enum": numbers}


def test_long_runs_of_digits_in_a_text_stay() -> None:
    assert read(f'{{"schema": {{}}, "text": "{10**30}"}}').text == str(10**30)


@pytest.mark.parametrize("digits", [400, 5000])
def test_an_integer_that_no_float_holds_is_refused(digits: int) -> None:
    with pytest.raises(Refusal) as caught:
        read(f'{{"schema": {{"const": {"9" * digits}}}}}')

    assert caught.value.code in (Code.INVALID_JSON, Code.INVALID_PARAMETER)


@pytest.mark.parametrize("number", [2**64, -(10**30), 10**400])
def test_a_number_that_is_a_field_is_left_to_who_reads_the_field(number: int) -> None:
    assert read(f'{{"schema": {{}}, "seed": {number}}}').seed == number
