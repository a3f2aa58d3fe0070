"""Numbers and switches at, below and beyond their limits, on the simulator and on the real model."""

from typing import Any

import aiohttp
import pytest

from tests.cases.asking import ask, ask_raw

pytestmark = pytest.mark.asyncio(loop_scope="module")
ENGINES = pytest.mark.parametrize(
    "server", ["simulated", pytest.param("real", marks=pytest.mark.real_model)], indirect=True
)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        # PA-01
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 3.7}, "max_tokens"),
        ({"max_tokens": "256"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        # PA-03
        ({"temperature": 2.0001}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "0.7"}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": -1}, "top_p"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        # PA-05
        ({"n": 0}, "n"),
        ({"n": -1}, "n"),
        ({"n": 129}, "n"),
        ({"n": "2"}, "n"),
        # PA-07
        ({"stream": "false"}, "stream"),
        ({"stream": "true"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"model": 7}, "model"),
        ({"tools": {}}, "tools"),
        ({"stream_options": []}, "stream_options"),
        # integers that no float can hold
        ({"top_k": 10**400}, "top_k"),
        ({"top_logprobs": 10**400, "logprobs": True}, "top_logprobs"),
        ({"max_tokens": -(10**400)}, "max_tokens"),
    ],
)
async def test_a_value_that_cannot_be_is_refused_by_its_name(
    http: aiohttp.ClientSession, fields: dict[str, Any], param: str
) -> None:
    answer = await ask(http, fields)

    assert answer.status == 400
    assert answer.error["code"] == "invalid_parameter"
    assert answer.error["param"] == param
    assert isinstance(answer.error["message"], str)
    assert len(answer.error["message"]) < 300


@pytest.mark.parametrize(
    ("messages", "code"),
    [("hi", "invalid_parameter"), ({"role": "user"}, "malformed_request"), (5, "malformed_request")],
)
async def test_messages_that_are_no_list_are_refused(http: aiohttp.ClientSession, messages: Any, code: str) -> None:
    answer = await ask(http, messages=messages)

    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, code, "messages")


@ENGINES
async def test_of_three_choices_each_is_whole_and_all_are_counted(http: aiohttp.ClientSession) -> None:
    answer = await ask(http, n=3, max_tokens=2)
    streamed = await ask(http, n=3, max_tokens=2, stream=True)
    *chunks, done = streamed.chunks
    deltas = [(chunk["choices"][0]["index"], chunk["choices"][0]) for chunk in chunks]

    assert [choice["index"] for choice in answer.document["choices"]] == [0, 1, 2]
    assert answer.usage["completion_tokens"] == 6
    assert done == "[DONE]"
    for index in range(3):
        own = [choice for number, choice in deltas if number == index]
        assert own[0]["delta"]["role"] == "assistant"
        assert [choice["finish_reason"] for choice in own][-1] == "length"


@ENGINES
@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": None, "stop": ["."]},
        {"max_tokens": 1},
        {"temperature": 2},
        {"temperature": None},
        {"n": 1},
        {"n": None},
        {"some_future_field": {"a": [1]}, "chat_template_kwargs": {"x": 1}},
        {"seed": -(2**63)},
        {"seed": 2**64},
        {"seed": 10**300},
        {"logit_bias": {"999999999": 100, "0": -100}},
        {"stop": ["\u200d", "\U0010ffff", "e\u0301", "\x00"]},
        {"top_k": -1, "min_p": 1, "typical_p": 0, "repeat_penalty": 10},
    ],
)
async def test_values_at_their_limit_are_answered(http: aiohttp.ClientSession, fields: dict[str, Any]) -> None:
    answer = await ask(http, fields)

    assert answer.status == 200
    assert answer.finish_reason in {"stop", "length"}


@ENGINES
async def test_a_huge_cap_is_no_error_and_runs_to_the_end_of_the_turn(http: aiohttp.ClientSession) -> None:
    for cap in (10**9, 2**63):
        answer = await ask(http, max_tokens=cap, temperature=0)
        assert (answer.status, answer.finish_reason) == (200, "stop")


@ENGINES
async def test_of_both_names_of_the_cap_the_newer_one_wins(http: aiohttp.ClientSession) -> None:
    answer = await ask(http, max_tokens=50, max_completion_tokens=2)

    assert answer.usage["completion_tokens"] == 2
    assert answer.finish_reason == "length"


@pytest.mark.parametrize("server", [pytest.param("real", marks=pytest.mark.real_model)], indirect=True)
@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.0, "top_p": 0},
        {"temperature": 1e-30},
        {"temperature": 5e-324},
        {"temperature": 1.0, "top_p": 1e-9},
        {"temperature": 2, "min_p": 1},
        {"temperature": 1, "top_k": 1},
    ],
)
async def test_filters_that_leave_one_token_give_the_greedy_answer(
    http: aiohttp.ClientSession, fields: dict[str, Any]
) -> None:
    greedy = await ask(http, temperature=0, seed=1)
    answer = await ask(http, seed=2, **fields)

    assert answer.text == greedy.text


@ENGINES
async def test_scores_are_finite_numbers_at_any_temperature(http: aiohttp.ClientSession) -> None:
    for temperature in (0, 1e-30, 2):
        answer = await ask(http, temperature=temperature, logprobs=True, top_logprobs=20)
        assert b"NaN" not in answer.body
        assert b"Infinity" not in answer.body


@pytest.mark.parametrize("value", ["NaN", "1e999", "-Infinity"])
async def test_a_temperature_that_is_no_number_is_refused(http: aiohttp.ClientSession, value: str) -> None:
    body = f'{{"messages":[{{"role":"user","content":"x"}}],"temperature":{value}}}'
    answer = await ask_raw(http, body.encode())

    assert answer.status == 400
    assert answer.error["code"] in {"invalid_json", "invalid_parameter"}
