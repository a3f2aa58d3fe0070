"""Every bad input of a Responses body is a 400 that names its field; every odd but legal one is read as meant."""

import json
from typing import Any

import pytest

from pocketserver.chat import AnyJsonObject, JsonSchema, ToolMode
from pocketserver.errors import Code, Refusal
from pocketserver.wire.openai_chat_request import Defaults
from pocketserver.wire.openai_responses_request import Asked, parse

DEFAULTS = Defaults(max_tokens=1024, temperature=0.7, top_p=0.95, stop=("END",))
ADD: dict[str, Any] = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
PATCH: dict[str, Any] = {"type": "custom", "name": "patch", "description": "Patch a file"}


def unheard(param: str, what: str) -> None:
    raise AssertionError(f"nobody expected the warning {param}:{what}")


def ask(drop_hosted: bool = False, warnings: list[str] | None = None, **fields: Any) -> Asked:
    body = json.dumps({"model": "default", "input": "hi", **fields}).encode()
    heard = unheard if warnings is None else lambda param, what: warnings.append(f"{param}:{what}")
    return parse(body, request_id="r1", defaults=DEFAULTS, drop_hosted=drop_hosted, warn=heard)


def refusal(**fields: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        ask(**fields)
    return caught.value


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("max_output_tokens", 0, "max_output_tokens"),
        ("max_output_tokens", 1.5, "max_output_tokens"),
        ("max_output_tokens", "16", "max_output_tokens"),
        ("temperature", 2.1, "temperature"),
        ("temperature", "1", "temperature"),
        ("top_p", -0.1, "top_p"),
        ("presence_penalty", 3, "presence_penalty"),
        ("frequency_penalty", -3, "frequency_penalty"),
        ("top_logprobs", 21, "top_logprobs"),
        ("input", [], "input"),
        ("input", "", "input"),
        ("input", ["hi"], "input[0]"),
        ("model", 7, "model"),
        ("stream", "true", "stream"),
        ("store", "false", "store"),
        ("instructions", 5, "instructions"),
        ("previous_response_id", 5, "previous_response_id"),
        ("tools", {}, "tools"),
        ("tools", [{"type": "function", "name": "a b"}], "tools[0].name"),
        ("tools", [{"type": "function", "function": {"name": "add"}}], "tools[0].name"),
        ("tools", [{"type": "function", "name": "x", "parameters": "{}"}], "tools[0].parameters"),
        ("tools", [{"name": "x"}], "tools[0]"),
        ("tools", [ADD, ADD], "tools"),
        ("tools", [{"type": "web_search"}], "tools[0].type"),
        ("tools", [{"type": "web_search_preview_2025_03_11"}], "tools[0].type"),
        ("tools", [{"type": "mcp", "server_label": "x"}], "tools[0].type"),
        ("tools", [{**PATCH, "format": {"type": "grammar", "syntax": "ebnf", "definition": "x"}}], "tools[0].format.syntax"),
        ("tools", [{**PATCH, "format": {"type": "grammar", "syntax": "lark", "definition": "start: A"}}], "tools[0].format.definition"),
        ("tools", [{**PATCH, "format": {"type": "grammar", "syntax": "regex"}}], "tools[0].format.definition"),
        ("tools", [{**PATCH, "format": {"type": "xml"}}], "tools[0].format.type"),
        ("tools", [{"type": "namespace", "name": "n"}], "tools[0].tools"),
        ("tool_choice", "required", "tool_choice"),
        ("tool_choice", "sometimes", "tool_choice"),
        ("tool_choice", {"type": "function", "name": "add"}, "tool_choice"),
        ("tool_choice", {"type": "web_search"}, "tool_choice"),
        ("tool_choice", {"type": "allowed_tools", "tools": []}, "tool_choice.tools"),
        ("tool_choice", {"type": "allowed_tools", "mode": "x", "tools": [ADD]}, "tool_choice.mode"),
        ("text", {"format": {"type": "xml"}}, "text.format.type"),
        ("text", {"format": {"type": "json_schema", "name": "n"}}, "text.format.schema"),
        ("text", {"format": {"type": "json_schema", "schema": {}}}, "text.format.name"),
        ("text", {"format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}}, "text.format.name"),
        ("text", {"verbosity": "loud"}, "text.verbosity"),
        ("reasoning", {"effort": "much"}, "reasoning.effort"),
        ("reasoning", {"summary": "long"}, "reasoning.summary"),
        ("include", ["everything"], "include[0]"),
        ("truncation", "always", "truncation"),
        ("metadata", {"a": 1}, "metadata"),
        ("metadata", {str(key): "" for key in range(17)}, "metadata"),
        ("metadata", {"k" * 65: ""}, "metadata"),
        ("metadata", {"k": "v" * 513}, "metadata"),
        ("background", True, "background"),
        ("conversation", "conv_1", "conversation"),
        ("prompt", {"id": "pmpt_1"}, "prompt"),
        ("context_management", [{"type": "compaction"}], "context_management"),
        ("moderation", {"model": "x"}, "moderation"),
        ("response_format", {"type": "json_object"}, "response_format"),
        ("text", {"format": {"type": "json_object", "schema": True}}, "text.format.schema"),
        ("stream_options", [], "stream_options"),
    ],
)  # fmt: skip
def test_a_bad_value_is_invalid_parameter_and_names_the_field(field: str, value: Any, param: str) -> None:
    refused = refusal(**{field: value})

    assert refused.code is Code.INVALID_PARAMETER
    assert refused.param is not None
    assert refused.param.startswith(param)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{}", Code.MALFORMED_REQUEST),
        (b'{"input":null}', Code.MALFORMED_REQUEST),
        (b'{"input":{"role":"user"}}', Code.MALFORMED_REQUEST),
        (b'{"input":7}', Code.MALFORMED_REQUEST),
        (b"[]", Code.MALFORMED_REQUEST),
        (b"", Code.INVALID_JSON),
        (b'{"input":"\xff"}', Code.INVALID_JSON),
    ],
)
def test_a_broken_body_has_the_code_of_its_fault(body: bytes, code: Code) -> None:
    with pytest.raises(Refusal) as caught:
        parse(body, request_id="r1", defaults=DEFAULTS, drop_hosted=False, warn=unheard)

    assert caught.value.code is code


def test_the_chat_forms_are_refused_with_a_hint_to_this_apis_own() -> None:
    assert "text.format" in refusal(response_format={"type": "json_object"}).message
    assert "flat" in refusal(text={"format": {"type": "json_schema", "json_schema": {}}}).message
    assert "flat" in refusal(tools=[{"type": "function", "function": {"name": "add"}}]).message


def test_a_follow_up_may_have_no_input() -> None:
    body = b'{"previous_response_id":"resp_1"}'
    asked = parse(body, request_id="r1", defaults=DEFAULTS, drop_hosted=False, warn=unheard)

    assert asked.input == []


NULLABLE = [
    "instructions", "previous_response_id", "store", "stream", "stream_options", "tools", "tool_choice", "text",
    "parallel_tool_calls", "max_tool_calls", "reasoning", "max_output_tokens", "temperature", "top_p", "top_logprobs",
    "include", "truncation", "metadata", "user", "safety_identifier", "prompt_cache_key", "service_tier", "background",
    "conversation", "prompt", "presence_penalty", "frequency_penalty", "response_format", "something_new",
]  # fmt: skip


@pytest.mark.parametrize("field", NULLABLE)
def test_null_means_absent(field: str) -> None:
    assert ask(**{field: None}) == ask()


def test_what_is_left_out_is_the_servers_own_setting() -> None:
    request = ask().request

    assert (request.max_tokens, request.sampling.temperature, request.sampling.top_p) == (1024, 0.7, 0.95)
    assert request.stop == ("END",)
    assert ask().echo["max_output_tokens"] is None
    assert ask().echo["temperature"] == 0.7


def test_one_token_is_enough_here() -> None:
    assert ask(max_output_tokens=1).request.max_tokens == 1


def test_formats_become_constraints() -> None:
    schema = {"type": "object"}
    named = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}

    assert ask(text={"format": {"type": "text"}}).request.constraint is None
    assert ask(text={"format": {"type": "json_object"}}).request.constraint == AnyJsonObject()
    beside = ask(text={"format": {"type": "json_object", "schema": schema}}).request.constraint
    assert beside == JsonSchema(schema=schema, strict=True)
    assert ask(text={"format": named}).request.constraint == JsonSchema(schema=schema, strict=True)
    assert ask(text={"format": named}).echo["text"] == {"format": {**named, "description": None}}


def test_scores_are_asked_for_by_include_alone() -> None:
    assert ask(top_logprobs=3).request.top_logprobs is None
    assert ask(top_logprobs=3, include=["message.output_text.logprobs"]).request.top_logprobs == 3
    assert ask(include=["message.output_text.logprobs"]).request.top_logprobs == 0


def test_what_only_hosted_tools_mean_may_be_included() -> None:
    ask(include=["web_search_call.results", "file_search_call.results", "reasoning.encrypted_content"])


def test_reasoning_is_applied_and_told_back() -> None:
    asked = ask(reasoning={"effort": "low", "summary": "auto"})

    assert asked.request.reasoning_effort == "low"
    assert asked.echo["reasoning"] == {"effort": "low", "summary": "auto"}
    assert ask(reasoning={"generate_summary": "concise"}).echo["reasoning"] == {"effort": None, "summary": "concise"}


def test_the_echo_repeats_what_the_request_said() -> None:
    echo = ask(
        metadata={"a": "b"}, user="u", safety_identifier="s", prompt_cache_key="k", truncation="auto", tools=[ADD]
    ).echo

    assert echo["metadata"] == {"a": "b"}
    assert (echo["user"], echo["safety_identifier"], echo["prompt_cache_key"]) == ("u", "s", "k")
    assert (echo["truncation"], echo["service_tier"], echo["background"]) == ("auto", "default", False)
    assert [*echo["tools"]] == [{**ADD, "description": None, "strict": True}]


@pytest.mark.parametrize(
    ("fields", "warning"),
    [
        ({"frobnicate": 1}, "frobnicate"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"stop": ["x"]}, "stop"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"max_tool_calls": 2}, "max_tool_calls"),
        ({"prompt_cache_retention": "24h"}, "prompt_cache_retention"),
        ({"reasoning": {"mode": "x"}}, "reasoning.mode"),
    ],
)
def test_nothing_is_ignored_in_silence(fields: dict[str, Any], warning: str) -> None:
    warnings: list[str] = []
    ask(warnings=warnings, **fields)

    [said] = warnings
    assert said.startswith(warning + ":")


def test_tools_without_more_are_functions_of_no_arguments() -> None:
    [tool] = ask(tools=[{"type": "function", "name": "now"}]).request.tools

    assert (tool.name, tool.parameters, tool.strict) == ("now", {}, True)


def test_a_custom_tool_is_a_function_of_one_text() -> None:
    asked = ask(tools=[PATCH])
    [tool] = asked.request.tools

    assert tool.parameters["properties"] == {"input": {"type": "string"}}
    assert [*asked.echo["tools"]] == [{**PATCH, "format": {"type": "text"}}]


def test_a_regex_holds_a_custom_tools_text() -> None:
    wanted = {"type": "grammar", "syntax": "regex", "definition": "a|b"}
    [tool] = ask(tools=[{**PATCH, "format": wanted}]).request.tools

    assert tool.parameters["properties"]["input"]["pattern"] == "^(?:a|b)$"


def test_a_lark_grammar_of_a_regular_language_holds_it_too_and_the_model_is_told() -> None:
    wanted = {"type": "grammar", "syntax": "lark", "definition": 'start: "a" | "b"'}
    asked = ask(tools=[{**PATCH, "format": wanted}])
    [tool] = asked.request.tools

    assert tool.parameters["properties"]["input"]["pattern"] == "^(?:(?:(?:a)|(?:b)))$"
    assert tool.description.startswith("Patch a file\n")
    assert 'start: "a" | "b"' in tool.description
    assert asked.echo["tools"][0]["format"] == wanted


def test_what_cannot_run_here_is_dropped_aloud_where_that_is_wanted() -> None:
    warnings: list[str] = []
    lark = {"type": "grammar", "syntax": "lark", "definition": 'start: "x" start'}
    tools = [{"type": "web_search"}, ADD, {"type": "local_shell"}, {**PATCH, "format": lark}]
    asked = ask(drop_hosted=True, warnings=warnings, tools=tools)

    assert [tool.name for tool in asked.request.tools] == ["add", "patch"]
    assert 'start: "x" start' in asked.request.tools[1].description
    assert "pattern" not in asked.request.tools[1].parameters["properties"]["input"]
    assert [warning.split(":")[0] for warning in warnings] == ["tools[0]", "tools[2]", "tools[3].format"]
    assert [tool["type"] for tool in asked.echo["tools"]] == ["function", "custom"]


def test_a_choice_of_a_dropped_tool_is_refused() -> None:
    with pytest.raises(Refusal, match="web_search"):
        ask(drop_hosted=True, warnings=[], tools=[{"type": "web_search"}], tool_choice={"type": "web_search"})


def test_a_subset_loses_what_was_dropped() -> None:
    warnings: list[str] = []
    both: list[dict[str, Any]] = [{"type": "web_search"}, {"type": "function", "name": "add"}]
    asked = ask(
        drop_hosted=True,
        warnings=warnings,
        tools=[{"type": "web_search"}, ADD, PATCH],
        tool_choice={"type": "allowed_tools", "mode": "auto", "tools": both},
    )

    assert [tool.name for tool in asked.request.tools] == ["add"]
    assert warnings[-1].startswith("tool_choice.tools:")


def test_a_namespace_is_flattened() -> None:
    inner = {"type": "namespace", "name": "git", "description": "Git", "tools": [ADD, PATCH]}
    asked = ask(tools=[inner], tool_choice={"type": "function", "name": "add", "namespace": "git"})

    assert [tool.name for tool in asked.request.tools] == ["git.add", "git.patch"]
    assert asked.request.tool_choice.name == "git.add"
    assert [tool["name"] for tool in asked.echo["tools"][0]["tools"]] == ["add", "patch"]


@pytest.mark.parametrize(
    ("choice", "mode", "name", "tools"),
    [
        ("auto", ToolMode.AUTO, None, ["add", "patch"]),
        ("none", ToolMode.NONE, None, ["add", "patch"]),
        ("required", ToolMode.REQUIRED, None, ["add", "patch"]),
        ({"type": "function", "name": "add"}, ToolMode.REQUIRED, "add", ["add", "patch"]),
        ({"type": "custom", "name": "patch"}, ToolMode.REQUIRED, "patch", ["add", "patch"]),
        ({"type": "allowed_tools", "tools": [{"type": "function", "name": "add"}]}, ToolMode.AUTO, None, ["add"]),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "patch"}]},
            ToolMode.REQUIRED,
            None,
            ["patch"],
        ),
    ],
)
def test_every_form_of_tool_choice(choice: Any, mode: ToolMode, name: str | None, tools: list[str]) -> None:
    asked = ask(tools=[ADD, PATCH], tool_choice=choice, parallel_tool_calls=False)

    assert (asked.request.tool_choice.mode, asked.request.tool_choice.name) == (mode, name)
    assert not asked.request.tool_choice.parallel
    assert [tool.name for tool in asked.request.tools] == tools
    assert asked.echo["tool_choice"] == choice
    assert len(asked.echo["tools"]) == 2


def test_a_choice_by_the_wrong_kind_is_refused() -> None:
    assert refusal(tools=[ADD, PATCH], tool_choice={"type": "custom", "name": "add"}).param == "tool_choice"


def test_an_engines_words_for_a_place_become_this_apis() -> None:
    from pocketserver.wire.openai_responses_tools import refused_here

    search: dict[str, Any] = {"type": "web_search"}
    asked = ask(drop_hosted=True, warnings=[], tools=[search, ADD, PATCH])

    def named(param: str) -> str | None:
        return refused_here(Refusal(Code.INVALID_PARAMETER, "…", param=param), asked.toolbox).param

    assert named("messages") == "input"
    assert named("response_format.json_schema.schema") == "text.format.schema"
    assert named("tools[0].function.parameters") == "tools[1].parameters"
    assert named("tools[1].function.parameters") == "tools[2].format"
    assert named("tools") == "tools"
