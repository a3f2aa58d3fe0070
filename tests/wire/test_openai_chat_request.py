"""Every bad input of a chat body is a 400 that names its field; every odd but legal one is read as meant."""

import json
from typing import Any

import pytest

from pocketserver.chat import AnyJsonObject, JsonSchema, Role, ToolMode
from pocketserver.errors import Code, Refusal
from pocketserver.wire.openai_chat_request import Asked, parse
from pocketserver.wire.openai_sampling import Defaults

DEFAULTS = Defaults(max_tokens=1024, temperature=0.7, top_p=0.95, stop=())
HI = [{"role": "user", "content": "hi"}]
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def read(data: bytes) -> Asked:
    return parse(data, request_id="r1", defaults=DEFAULTS)


def ask(**fields: Any) -> Asked:
    return read(json.dumps({"model": "default", "messages": HI, **fields}).encode())


def refusal(**fields: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        ask(**fields)
    return caught.value


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("max_tokens", 0, "max_tokens"),
        ("max_tokens", -1, "max_tokens"),
        ("max_tokens", 3.7, "max_tokens"),
        ("max_tokens", "256", "max_tokens"),
        ("max_tokens", True, "max_tokens"),
        ("max_completion_tokens", 0, "max_completion_tokens"),
        ("temperature", 2.0001, "temperature"),
        ("temperature", -0.1, "temperature"),
        ("temperature", "0.7", "temperature"),
        ("top_p", 1.1, "top_p"),
        ("top_p", -1, "top_p"),
        ("presence_penalty", 2.5, "presence_penalty"),
        ("frequency_penalty", -2.5, "frequency_penalty"),
        ("n", 0, "n"),
        ("n", -1, "n"),
        ("n", 9, "n"),
        ("n", 129, "n"),
        ("n", "2", "n"),
        ("stream", "false", "stream"),
        ("stream", 1, "stream"),
        ("messages", "hi", "messages"),
        ("messages", [], "messages"),
        ("model", 7, "model"),
        ("tools", {}, "tools"),
        ("stream_options", [], "stream_options"),
        ("stop", 5, "stop"),
        ("seed", "x", "seed"),
        ("top_logprobs", 3, "top_logprobs"),
        ("reasoning_effort", "much", "reasoning_effort"),
        ("functions", [], "functions"),
        ("audio", {}, "audio"),
        ("modalities", ["text", "audio"], "modalities"),
        ("tool_choice", "required", "tool_choice"),
        ("logit_bias", {"x": 1}, "logit_bias"),
        ("response_format", {"type": "xml"}, "response_format.type"),
        ("response_format", {"type": "json_schema"}, "response_format.json_schema"),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "x"}},
            "response_format.json_schema.schema",
        ),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "x", "schema": True}},
            "response_format.json_schema.schema",
        ),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"schema": {}}},
            "response_format.json_schema.name",
        ),
    ],
)
def test_a_bad_value_is_invalid_parameter_and_names_the_field(field: str, value: Any, param: str) -> None:
    refused = refusal(**{field: value})

    assert refused.code is Code.INVALID_PARAMETER
    assert refused.param == param
    assert param.split(".", maxsplit=1)[0] in refused.message


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"model":"default","messages":[{"role":"user","content":"\xbe\xc8"}]}', Code.INVALID_JSON),
        (b'{"messages":[],"\xff":1}', Code.INVALID_JSON),
        (b'{"messages":[{"role":"user","content":"\xc0\xaf"}]}', Code.INVALID_JSON),
        (b'{"messages":[{"role":"user","content":"cut \\ud83d"}]}', Code.INVALID_JSON),
        (b'{"messages":[{"role":"user","content":"\\ude00 x"}]}', Code.INVALID_JSON),
        (b'{"messages":[],"metadata":{"a":"\\ude00"}}', Code.INVALID_JSON),
        (b'{"messages":[{"role":"user","content":"hi"}],"temperature":NaN}', Code.INVALID_JSON),
        (b'{"messages":[{"role":"user","content":"hi"}],"temperature":1e999}', Code.INVALID_PARAMETER),
        (b'{"messages":[{"role":"user","content":"hi"}],"seed":1e400}', Code.INVALID_PARAMETER),
        (b'{"messages":[{"role":"user","content":"hi"}]} xyz', Code.INVALID_JSON),
        (b'{"messages":[]}{"messages":[]}', Code.INVALID_JSON),
        (b"{'messages':[]}", Code.INVALID_JSON),
        (b'{"messages":[],}', Code.INVALID_JSON),
        (b"", Code.INVALID_JSON),
        (b'{"x":' + b"[" * 100_000, Code.INVALID_JSON),
        (b"[]", Code.MALFORMED_REQUEST),
        (b'"hi"', Code.MALFORMED_REQUEST),
        (b"null", Code.MALFORMED_REQUEST),
        (b"{}", Code.MALFORMED_REQUEST),
        (b'{"messages":{"role":"user"}}', Code.MALFORMED_REQUEST),
        (b'{"messages":null}', Code.MALFORMED_REQUEST),
        (b'{"messages":["hi"]}', Code.INVALID_PARAMETER),
    ],
)
def test_a_broken_body_has_the_code_of_its_fault(body: bytes, code: Code) -> None:
    with pytest.raises(Refusal) as caught:
        read(body)

    assert caught.value.code is code
    assert "Error" not in caught.value.message


def test_a_body_in_another_encoding_is_told_where_it_breaks() -> None:
    with pytest.raises(Refusal, match="byte 11") as caught:
        read(b'{"model":"d\xbe"}')

    assert "UTF-8" in caught.value.message


def test_a_paired_surrogate_is_one_character() -> None:
    assert (
        read(b'{"messages":[{"role":"user","content":"\\ud83d\\ude00"}]}').request.messages[0].content == "\U0001f600"
    )


def test_of_two_equal_keys_the_last_one_counts() -> None:
    assert not read(b'{"stream":true,"stream":false,"messages":[{"role":"user","content":"hi"}]}').stream


@pytest.mark.parametrize(
    "field", ["max_tokens", "temperature", "top_p", "n", "stream", "stop", "tools", "stream_options"]
)
def test_null_means_absent(field: str) -> None:
    assert ask(**{field: None}).request == ask().request


def test_unknown_fields_are_ignored() -> None:
    assert ask(some_future_field={"a": [1]}, metadata={"b": "c"}, store=True, user="u").request == ask().request


def test_defaults_are_the_servers() -> None:
    request = ask().request

    assert (request.max_tokens, request.sampling.temperature, request.sampling.top_p) == (1024, 0.7, 0.95)


def test_two_servers_in_one_process_have_their_own_defaults() -> None:
    body = b'{"messages":[{"role":"user","content":"hi"}]}'
    colder = Defaults(max_tokens=10, temperature=0.1, top_p=0.5, stop=())
    read = [parse(body, request_id="r", defaults=defaults).request for defaults in (DEFAULTS, colder, DEFAULTS)]

    assert [request.sampling.temperature for request in read] == [0.7, 0.1, 0.7]


@pytest.mark.parametrize("zero", [0, 0.0])
def test_a_zero_is_no_absent_field(zero: float) -> None:
    assert ask(temperature=zero).request.sampling.temperature == 0


def test_every_field_of_sampling_is_read() -> None:
    fields = {"temperature": 0.5, "top_p": 0.6, "top_k": 7, "min_p": 0.1, "typical_p": 0.9, "repeat_penalty": 1.2}
    fields |= {"frequency_penalty": 0.3, "presence_penalty": -0.4, "seed": 5}
    fields |= {"dry_multiplier": 0.8, "dry_base": 1.5, "dry_allowed_length": 3}
    sampling = ask(**fields, repeat_last_n=32, logit_bias={"12": -3}).request.sampling

    assert {name: getattr(sampling, name) for name in fields} == fields
    assert (sampling.penalty_last_n, sampling.logit_bias) == (32, ((12, -3.0),))
    assert refusal(dry_multiplier=-1).param == "dry_multiplier"


def test_a_huge_max_tokens_is_a_limit_and_no_error() -> None:
    assert ask(max_tokens=9223372036854775808).request.max_tokens == 2**31 - 1


def test_the_newer_name_of_max_tokens_wins() -> None:
    assert ask(max_tokens=50, max_completion_tokens=2).request.max_tokens == 2


def test_empty_stop_strings_stop_nothing() -> None:
    assert ask(stop=["", "END"]).request.stop == ("END",)


@pytest.mark.parametrize(
    ("role", "read_as"), [("system", Role.SYSTEM), ("developer", Role.SYSTEM), ("assistant", Role.ASSISTANT)]
)
def test_known_roles_are_read(role: str, read_as: Role) -> None:
    assert ask(messages=[{"role": role, "content": "x"}]).request.messages[0].role is read_as


@pytest.mark.parametrize(
    "message", [{"role": "User", "content": "hi"}, {"role": "robot"}, {"content": "hi"}, {"role": ""}]
)
def test_unknown_roles_are_refused_with_the_list(message: dict[str, str]) -> None:
    refused = refusal(messages=[*HI, message])

    assert refused.param == "messages[1].role"
    assert "assistant, developer, system, tool, user" in refused.message


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url"])
def test_media_parts_are_refused_and_never_dropped(kind: str) -> None:
    refused = refusal(messages=[{"role": "user", "content": [{"type": "text", "text": "see"}, {"type": kind}]}])

    assert refused.param == "messages[0].content[1]"
    assert "text only" in refused.message


def test_text_parts_are_joined_in_order() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]

    assert ask(messages=[{"role": "user", "content": parts}]).request.messages[0].content == "one\ntwo"


@pytest.mark.parametrize("content", [{"content": None}, {}])
def test_an_assistant_with_calls_needs_no_content(content: dict[str, None]) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = ask(messages=[*HI, {"role": "assistant", "tool_calls": [call], **content}]).request.messages[1]

    assert message.content == ""
    assert message.tool_calls[0].name == "f"


def test_a_user_without_content_is_refused() -> None:
    assert refusal(messages=[{"role": "user", "content": None}]).param == "messages[0].content"


def test_null_ids_of_calls_are_filled() -> None:
    call = {"id": None, "type": None, "function": {"name": "f", "arguments": "{}"}}

    assert ask(messages=[*HI, {"role": "assistant", "tool_calls": [call]}]).request.messages[1].tool_calls[0].id


def test_arguments_that_are_no_object_are_refused_with_their_place() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": "oops"}}
    refused = refusal(messages=[*HI, {"role": "assistant", "tool_calls": [call]}])

    assert refused.param == "messages[1].tool_calls[0].function.arguments"


@pytest.mark.parametrize("parameters", [None, {}, [], {"type": "object", "properties": [], "required": None}])
def test_a_tool_without_parameters_is_legal(parameters: Any) -> None:
    tool = ask(tools=[{"type": "function", "function": {"name": "now", "parameters": parameters}}]).request.tools[0]

    assert tool.parameters.get("properties", {}) == {}


def test_tool_choice_is_read_in_all_its_forms() -> None:
    named = {"type": "function", "function": {"name": "add"}}

    assert ask(tools=[ADD]).request.tool_choice.mode is ToolMode.AUTO
    assert ask(tools=[ADD], tool_choice="none").request.tool_choice.mode is ToolMode.NONE
    assert ask(tools=[ADD], tool_choice="required").request.tool_choice.mode is ToolMode.REQUIRED
    assert ask(tools=[ADD], tool_choice=named).request.tool_choice.name == "add"
    assert refusal(tools=[ADD], tool_choice={"type": "function", "function": {"name": "no"}}).param == "tool_choice"


def test_response_formats_become_constraints() -> None:
    schema = {"type": "object"}

    assert ask(response_format={"type": "text"}).request.constraint is None
    assert ask(response_format={"type": "json_object"}).request.constraint == AnyJsonObject()
    assert ask(response_format={"type": "json_object", "schema": schema}).request.constraint == JsonSchema(
        schema=schema, strict=True
    )
    assert ask(
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": True}}
    ).request.constraint == JsonSchema(schema={}, strict=True)
