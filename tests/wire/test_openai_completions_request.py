"""Every bad input of a completions body is a 400 that names its field; every odd but legal one is read as meant."""

import json
from typing import Any

import pytest

from pocketserver.errors import Code, Refusal
from pocketserver.wire.openai_completions_request import Asked, parse
from pocketserver.wire.openai_sampling import Defaults

DEFAULTS = Defaults(max_tokens=1024, temperature=0.7, top_p=0.95, stop=("END",))


def read(data: bytes, warnings: list[str] | None = None) -> Asked:
    told = [] if warnings is None else warnings
    return parse(data, request_id="r1", defaults=DEFAULTS, warn=lambda field, what: told.append(f"{field}:{what}"))


def ask(prompt: Any = "hi", warnings: list[str] | None = None, **fields: Any) -> Asked:
    return read(json.dumps({"model": "default", "prompt": prompt, **fields}).encode(), warnings)


def refusal(prompt: Any = "hi", **fields: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        ask(prompt, **fields)
    return caught.value


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("max_tokens", -2, "max_tokens"),
        ("max_tokens", "16", "max_tokens"),
        ("max_tokens", True, "max_tokens"),
        ("max_tokens", 1.5, "max_tokens"),
        ("temperature", 2.1, "temperature"),
        ("top_p", -0.1, "top_p"),
        ("n", 0, "n"),
        ("n", 129, "n"),
        ("best_of", 0, "best_of"),
        ("best_of", 2, "best_of"),
        ("best_of", 21, "best_of"),
        ("logprobs", True, "logprobs"),
        ("logprobs", -1, "logprobs"),
        ("logprobs", 6, "logprobs"),
        ("echo", "yes", "echo"),
        ("stop", 5, "stop"),
        ("suffix", ["x"], "suffix"),
        ("seed", "x", "seed"),
        ("frequency_penalty", 2.5, "frequency_penalty"),
        ("presence_penalty", -2.5, "presence_penalty"),
        ("logit_bias", {"x": 1}, "logit_bias"),
        ("logit_bias", {"5": 101}, "logit_bias"),
        ("stream", "true", "stream"),
        ("stream_options", [], "stream_options"),
        ("model", 7, "model"),
    ],
)
def test_a_bad_value_is_invalid_parameter_and_names_the_field(field: str, value: Any, param: str) -> None:
    refused = refusal(**{field: value})

    assert (refused.code, refused.param) == (Code.INVALID_PARAMETER, param)
    assert param in refused.message


@pytest.mark.parametrize(
    ("prompt", "code", "param"),
    [
        (None, Code.MALFORMED_REQUEST, "prompt"),
        (5, Code.MALFORMED_REQUEST, "prompt"),
        ({}, Code.MALFORMED_REQUEST, "prompt"),
        ([], Code.INVALID_PARAMETER, "prompt"),
        (["a", 5], Code.INVALID_PARAMETER, "prompt[1]"),
        ([5, "a"], Code.INVALID_PARAMETER, "prompt[0]"),
        ([None], Code.INVALID_PARAMETER, "prompt[0]"),
        ([-1], Code.INVALID_PARAMETER, "prompt[0]"),
        ([2**40], Code.INVALID_PARAMETER, "prompt[0]"),
        ([True], Code.INVALID_PARAMETER, "prompt[0]"),
        ([[1, 2], []], Code.INVALID_PARAMETER, "prompt[1]"),
        ([[1, 2], ["a"]], Code.INVALID_PARAMETER, "prompt[1]"),
        (["a"] * 129, Code.INVALID_PARAMETER, "prompt"),
    ],
)
def test_a_prompt_of_no_known_kind_is_refused_with_its_place(prompt: Any, code: Code, param: str) -> None:
    refused = refusal(prompt)

    assert (refused.code, refused.param) == (code, param)


@pytest.mark.parametrize("body", [{}, {"model": "default"}, {"prompt": None}])
def test_a_missing_prompt_is_malformed(body: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match="missing") as caught:
        read(json.dumps(body).encode())
    assert (caught.value.code, caught.value.param) == (Code.MALFORMED_REQUEST, "prompt")


@pytest.mark.parametrize("body", [{"messages": []}, {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi"}])
def test_messages_are_sent_to_the_chat_route(body: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match="/v1/chat/completions") as caught:
        read(json.dumps(body).encode())
    assert (caught.value.code, caught.value.param) == (Code.INVALID_PARAMETER, "messages")


def test_a_text_is_one_raw_prompt_and_may_be_empty() -> None:
    assert [request.prompt for request in ask("hi").requests] == ["hi"]
    assert [request.prompt for request in ask("").requests] == [""]
    assert ask("hi").requests[0].messages == ()


def test_texts_are_prompts_of_their_own_with_ids_of_their_own() -> None:
    requests = ask(["a", "b", "c"]).requests

    assert [request.prompt for request in requests] == ["a", "b", "c"]
    assert [request.id for request in requests] == ["r1", "r1.1", "r1.2"]


def test_token_ids_are_one_prompt_and_lists_of_them_several() -> None:
    assert [request.prompt_tokens for request in ask([5, 6]).requests] == [(5, 6)]
    assert [request.prompt_tokens for request in ask([[5, 6], [7]]).requests] == [(5, 6), (7,)]
    assert ask([5, 6]).requests[0].prompt == ""


def test_the_servers_defaults_hold_and_not_sixteen_tokens() -> None:
    request = ask().requests[0]

    assert (request.max_tokens, request.sampling.temperature, request.stop) == (1024, 0.7, ("END",))
    assert request.top_logprobs is None
    assert not request.echo


def test_minus_one_is_no_limit_and_zero_is_zero() -> None:
    assert ask(max_tokens=-1).requests[0].max_tokens == 2**31 - 1
    assert ask(max_tokens=0).requests[0].max_tokens == 0
    assert ask(max_tokens=10**12).requests[0].max_tokens == 2**31 - 1


def test_logprobs_zero_is_not_off() -> None:
    assert ask(logprobs=0).requests[0].top_logprobs == 0
    assert ask(logprobs=5).requests[0].top_logprobs == 5


def test_best_of_may_say_what_n_says() -> None:
    assert ask(best_of=1).choices == 1
    assert ask(n=3, best_of=3).choices == 3
    assert "choose" in refusal(n=2, best_of=3).message
    assert refusal(n=3, best_of=1).param == "best_of"


def test_prompts_times_n_is_bounded() -> None:
    assert ask(["a", "b"], n=64).choices == 64
    assert refusal(["a", "b"], n=65).param == "prompt"


def test_a_suffix_is_text_behind_text_and_does_not_go_with_an_echo() -> None:
    assert ask(suffix=" end").requests[0].suffix == " end"
    assert ask(suffix="").requests[0].suffix == ""
    assert ask(suffix="", echo=True).requests[0].echo
    assert refusal(suffix="x", echo=True).param == "echo"
    assert refusal([5, 6], suffix="x").param == "suffix"


def test_sampling_and_stop_are_read_as_in_chat() -> None:
    request = ask(
        temperature=0.5, seed=7, top_k=3, frequency_penalty=1, logit_bias={"5": -100}, stop=["a", ""]
    ).requests[0]

    assert (request.sampling.temperature, request.sampling.seed, request.sampling.top_k) == (0.5, 7, 3)
    assert (request.sampling.frequency_penalty, request.sampling.logit_bias) == (1, ((5, -100),))
    assert request.stop == ("a",)


def test_usage_in_a_stream_is_told_on_request() -> None:
    assert ask(stream=True, stream_options={"include_usage": True}).include_usage
    assert not ask(stream=True).include_usage
    assert not ask(stream_options={"include_usage": True}).include_usage


def test_what_is_ignored_is_named() -> None:
    warnings: list[str] = []
    ask(
        "hi",
        warnings,
        user="me",
        grammar="root ::= x",
        response_format=None,
        cache_prompt=True,
        stream_options={"include_obfuscation": True},
    )

    assert [warning.partition(":")[0] for warning in warnings] == [
        "user",
        "grammar",
        "cache_prompt",
        "stream_options.include_obfuscation",
    ]


@pytest.mark.parametrize("field", ["suffix", "max_tokens", "n", "best_of", "logprobs", "echo", "stop", "stream"])
def test_null_means_absent(field: str) -> None:
    assert ask(**{field: None}) == ask()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"prompt":"\xbe\xc8"}', Code.INVALID_JSON),
        (b"", Code.INVALID_JSON),
        (b'{"prompt":"hi"} xyz', Code.INVALID_JSON),
        (b'{"prompt":"hi","temperature":NaN}', Code.INVALID_JSON),
        (b'["hi"]', Code.MALFORMED_REQUEST),
        (b'"hi"', Code.MALFORMED_REQUEST),
    ],
)
def test_a_broken_body_has_the_code_of_its_fault(body: bytes, code: Code) -> None:
    with pytest.raises(Refusal) as caught:
        read(body)
    assert caught.value.code is code
