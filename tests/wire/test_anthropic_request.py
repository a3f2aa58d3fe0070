"""Every bad input of an Anthropic body is a 400 that names its place; every odd but legal one is read as meant."""

import json
from typing import Any

import pytest

from pocketserver.chat import GenerationRequest, JsonSchema, Message, Role, ToolCall, ToolMode
from pocketserver.errors import Code, Refusal
from pocketserver.wire.anthropic_request import Asked, Defaults, Display, parse, parse_count

DEFAULTS = Defaults(temperature=0.7, top_p=0.95, stop=("###",))
HI = [{"role": "user", "content": "hi"}]
ADD = {"name": "add", "description": "Adds", "input_schema": {"type": "object", "properties": {"a": {}}}}
FORM: dict[str, Any] = {"type": "json_schema", "schema": {"type": "object"}}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}


def read(data: bytes, *, drop_hosted: bool = False, counting: bool = False) -> tuple[Asked, list[str]]:
    warnings: list[str] = []

    def warn(field: str, what: str) -> None:
        warnings.append(f"{field}:{what}")

    reader = parse_count if counting else parse
    asked = reader(data, request_id="r1", defaults=DEFAULTS, drop_hosted=drop_hosted, warn=warn)
    return asked, sorted(set(warnings))


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "tiny", "max_tokens": 16, "messages": HI, **fields}).encode()


def ask(**fields: Any) -> GenerationRequest:
    return read(body(**fields))[0].request


def told(**fields: Any) -> list[str]:
    return read(body(**fields))[1]


def refusal(**fields: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        ask(**fields)
    return caught.value


def turns(*messages: Any) -> tuple[Message, ...]:
    return ask(messages=list(messages)).messages


def test_a_plain_body_takes_the_servers_settings_for_what_it_leaves_out() -> None:
    asked, warnings = read(body())

    assert (asked.model, asked.stream, asked.display, warnings) == ("tiny", False, Display.NONE, [])
    assert asked.request.messages == (Message(role=Role.USER, content="hi"),)
    assert (asked.request.max_tokens, asked.request.stop) == (16, ("###",))
    assert (asked.request.sampling.temperature, asked.request.sampling.top_p) == (0.7, 0.95)
    assert asked.request.reasoning_effort == "none"


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("max_tokens", None, "max_tokens"),
        ("max_tokens", 0, "max_tokens"),
        ("max_tokens", -1, "max_tokens"),
        ("max_tokens", "64", "max_tokens"),
        ("messages", [], "messages"),
        ("messages", ["hi"], "messages[0]"),
        ("messages", [{"role": "tool", "content": "x"}], "messages.0.role"),
        ("messages", [{"role": ["user"], "content": "x"}], "messages.0.role"),
        ("messages", [{"role": "user"}], "messages.0.content"),
        ("messages", [{"role": "user", "content": 5}], "messages.0.content"),
        ("messages", [{"role": "user", "content": ["hi"]}], "messages.0.content.0"),
        ("messages", [{"role": "user", "content": [{"type": "text"}]}], "messages.0.content.0.text"),
        ("messages", [{"role": "user", "content": [{"type": {}}]}], "messages.0.content.0"),
        ("model", 7, "model"),
        ("stream", "false", "stream"),
        ("stream", 1, "stream"),
        ("system", 7, "system"),
        ("system", [{"type": "image"}], "system.0"),
        ("temperature", 1.1, "temperature"),
        ("temperature", -0.1, "temperature"),
        ("temperature", "0.7", "temperature"),
        ("top_p", 1.1, "top_p"),
        ("top_k", -1, "top_k"),
        ("stop_sequences", "###", "stop_sequences"),
        ("stop_sequences", [" "], "stop_sequences.0"),
        ("stop_sequences", ["a", ""], "stop_sequences.1"),
        ("stop_sequences", ["x"] * 65, "stop_sequences"),
        ("tools", {}, "tools"),
        ("tools", [{"name": "a b", "input_schema": {}}], "tools.0.name"),
        ("tools", [{"name": "a"}], "tools.0.input_schema"),
        ("tools", [{"name": "a", "input_schema": {"type": "array"}}], "tools.0.input_schema.type"),
        ("tools", [{"name": "a", "input_schema": {"properties": 1}}], "tools.0.input_schema.properties"),
        ("tools", [{"name": "a", "description": 1, "input_schema": {}}], "tools.0.description"),
        ("tools", [ADD, ADD], "tools"),
        ("tools", [ADD, {"type": "function", "function": {"name": "add"}}], "tools.1.type"),
        ("tools", [ADD] * 1025, "tools"),
        ("tool_choice", {"type": "auto"}, "tool_choice"),
        ("tool_choice", "auto", "tool_choice"),
        ("thinking", {"type": "much"}, "thinking.type"),
        ("thinking", {}, "thinking.type"),
        ("thinking", {"type": "enabled"}, "thinking.budget_tokens"),
        ("thinking", {"type": "enabled", "budget_tokens": 0}, "thinking.budget_tokens"),
        ("thinking", {"type": "enabled", "budget_tokens": True}, "thinking.budget_tokens"),
        ("thinking", {"type": "adaptive", "display": "all"}, "thinking.display"),
        ("output_config", {"effort": "huge"}, "output_config.effort"),
        ("output_config", {"effort": ["low"]}, "output_config.effort"),
        ("output_config", {"format": {"type": "text"}}, "output_config.format"),
        ("output_config", {"format": {"type": "json_schema"}}, "output_config.format.schema"),
        ("output_format", {"type": "json_schema", "schema": True}, "output_format.schema"),
        ("container", {"id": "c"}, "container"),
        ("mcp_servers", [{"type": "url"}], "mcp_servers"),
    ],
)
def test_a_bad_value_is_invalid_parameter_and_names_its_place(field: str, value: Any, param: str) -> None:
    refused = refusal(**{field: value})

    assert refused.code is Code.INVALID_PARAMETER
    assert refused.param == param
    assert param in refused.message


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b'{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"\\ud83d"}]}', Code.INVALID_JSON),
        (b'{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"\xbe\xc8"}]}', Code.INVALID_JSON),
        (b'{"messages":[],"metadata":{"a":"\\ude00"}}', Code.INVALID_JSON),
        (b'{"x":' + b"[" * 100_000, Code.INVALID_JSON),
        (b"", Code.INVALID_JSON),
        (b"[]", Code.MALFORMED_REQUEST),
        (b'{"model":"m","max_tokens":4}', Code.MALFORMED_REQUEST),
        (b'{"model":"m","max_tokens":4,"messages":{"role":"user"}}', Code.MALFORMED_REQUEST),
    ],
)
def test_a_body_that_is_no_request_has_the_code_for_it(data: bytes, code: Code) -> None:
    with pytest.raises(Refusal) as caught:
        read(data)
    assert caught.value.code is code


def test_a_paired_surrogate_is_a_character() -> None:
    data = b'{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"\\ud83d\\ude00"}]}'
    assert read(data)[0].request.messages[0].content == "\U0001f600"


def test_a_very_large_max_tokens_is_a_limit_and_no_error() -> None:
    assert ask(max_tokens=64_000).max_tokens == 64_000
    assert ask(max_tokens=10**12).max_tokens < 2**31


class TestSystem:
    def test_blocks_are_joined_in_order_and_stand_first(self) -> None:
        blocks = [{"type": "text", "text": "A"}, {"type": "text", "text": "B", "cache_control": {"type": "ephemeral"}}]
        assert ask(system=blocks).messages[0] == Message(role=Role.SYSTEM, content="A\nB")
        assert ask(system="A\nB").messages == ask(system=blocks).messages

    def test_an_empty_one_is_none(self) -> None:
        assert ask(system="").messages == ask(system=[]).messages == ask(system=None).messages == ask().messages

    def test_the_billing_line_that_changes_with_every_request_is_left_out(self) -> None:
        def prompt(cch: str) -> tuple[Message, ...]:
            billing = f"x-anthropic-billing-header: cc_version=2.1.197.a; cc_entrypoint=cli; cch={cch};"
            return ask(system=[{"type": "text", "text": billing}, {"type": "text", "text": "You help."}]).messages

        assert prompt("12345") == prompt("abcde") == ask(system="You help.").messages
        assert ask(system="x-anthropic-billing-header: cch=1;\nYou help.").messages == prompt("1")

    def test_a_system_message_between_others_stays_where_it_stands(self) -> None:
        made = turns(*HI, {"role": "system", "content": [{"type": "text", "text": "tools changed"}]}, *HI)
        assert [turn.role for turn in made] == [Role.USER, Role.SYSTEM, Role.USER]
        assert made[1].content == "tools changed"


class TestTurns:
    def test_text_blocks_of_a_turn_and_neighbours_of_a_role_are_one_message(self) -> None:
        blocks = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
        assert turns(blocks, {"role": "user", "content": "c"}) == (Message(role=Role.USER, content="a\nb\nc"),)

    def test_a_tool_round_keeps_ids_names_arguments_and_thoughts(self) -> None:
        made = turns(
            *HI,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "foreign"},
                    {"type": "redacted_thinking", "data": "eA=="},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {"b": 1, "a": ["ü"]}},
                    {"type": "tool_use", "id": "toolu_2", "name": "ls", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "go on"},
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "f.txt"}]},
                    {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no such file", "is_error": True},
                ],
            },
        )
        assert made[1] == Message(
            role=Role.ASSISTANT,
            content="I look.",
            reasoning="hm",
            tool_calls=(
                ToolCall(id="toolu_1", name="ls", arguments='{"b":1,"a":["ü"]}'),
                ToolCall(id="toolu_2", name="ls", arguments="{}"),
            ),
        )
        assert made[2] == Message(role=Role.TOOL, content="f.txt", tool_call_id="toolu_1")
        assert made[3] == Message(role=Role.TOOL, content="Error: no such file", tool_call_id="toolu_2")
        assert made[4] == Message(role=Role.USER, content="go on")

    def test_a_result_without_content_is_empty_and_needs_no_text_beside_it(self) -> None:
        made = turns({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]})
        assert made == (Message(role=Role.TOOL, content="", tool_call_id="t"),)

    def test_a_last_assistant_message_stays_last_to_be_continued(self) -> None:
        made = turns(*HI, {"role": "assistant", "content": "1, 2,"})
        assert made[-1] == Message(role=Role.ASSISTANT, content="1, 2,")

    def test_a_search_result_is_read_as_its_text(self) -> None:
        found = {"type": "search_result", "title": "T", "source": "S", "content": [{"type": "text", "text": "x"}]}
        assert turns({"role": "user", "content": [found]})[0].content == "T\nS\nx"

    @pytest.mark.parametrize(
        "block",
        [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}},
            {"type": "image", "source": {"type": "url", "url": "x"}},
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "plain"}},
        ],
    )
    def test_images_and_documents_are_refused_also_inside_a_result(self, block: dict[str, Any]) -> None:
        inside = {"type": "tool_result", "tool_use_id": "t", "content": [block]}
        for content, place in (([block], "messages.0.content.0"), ([inside], "messages.0.content.0.content.0")):
            refused = refusal(messages=[{"role": "user", "content": content}])
            assert refused.param == place
            assert "reads text only" in refused.message

    @pytest.mark.parametrize(
        ("role", "block"),
        [
            ("assistant", {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}),
            ("assistant", {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}),
            ("user", {"type": "container_upload", "file_id": "f"}),
            ("user", {"type": "tool_addition", "tool": {}}),
            ("system", {"type": "tool_addition", "tool": {}}),
        ],
    )
    def test_a_block_of_another_kind_is_refused_by_name_and_place(self, role: str, block: dict[str, Any]) -> None:
        refused = refusal(messages=[*HI, {"role": role, "content": [block]}])
        assert refused.param == "messages.1.content.0"
        assert refused.message.startswith("messages.1.content.0: unknown block type")
        assert block["type"] in refused.message

    @pytest.mark.parametrize(
        ("role", "block"),
        [
            ("user", {"type": "tool_use", "id": "t", "name": "ls", "input": {}}),
            ("user", {"type": "thinking", "thinking": "x", "signature": ""}),
            ("assistant", {"type": "tool_result", "tool_use_id": "t", "content": "x"}),
        ],
    )
    def test_a_block_in_the_wrong_mouth_is_refused(self, role: str, block: dict[str, Any]) -> None:
        assert f"role {role}" in refusal(messages=[{"role": role, "content": [block]}]).message

    def test_the_input_of_a_call_is_an_object(self) -> None:
        call = {"type": "tool_use", "id": "t", "name": "ls", "input": '{"a":1}'}
        assert refusal(messages=[{"role": "assistant", "content": [call]}]).param == "messages.0.content.0.input"


class TestTools:
    def test_a_client_tool_is_offered_with_its_schema(self) -> None:
        [tool] = ask(tools=[{**ADD, "type": "custom", "strict": True}]).tools
        assert (tool.name, tool.description, tool.parameters, tool.strict) == (
            "add",
            "Adds",
            ADD["input_schema"],
            True,
        )

    def test_hundreds_of_tools_are_taken(self) -> None:
        assert len(ask(tools=[{**ADD, "name": f"t{number}"} for number in range(300)]).tools) == 300

    @pytest.mark.parametrize(
        "kind",
        ["web_search_20250305", "web_fetch_20250910", "code_execution_20250825", "tool_search_tool_bm25_20251119",
         "mcp_toolset", "bash_20250124", "text_editor_20250728", "memory_20250818", "computer_20251124"],
    )  # fmt: skip
    def test_a_hosted_tool_is_refused_by_its_type_or_dropped_with_a_warning(self, kind: str) -> None:
        tools = [{"type": kind, "name": "x"}, ADD]
        assert kind in refusal(tools=tools).message
        asked, warnings = read(body(tools=tools), drop_hosted=True)
        assert [tool.name for tool in asked.request.tools] == ["add"]
        assert warnings == [f"tools.0:{kind} does not run here and was dropped"]

    @pytest.mark.parametrize(
        ("given", "mode", "name", "parallel"),
        [
            ({"type": "auto"}, ToolMode.AUTO, None, True),
            ({"type": "auto", "disable_parallel_tool_use": True}, ToolMode.AUTO, None, False),
            ({"type": "any"}, ToolMode.REQUIRED, None, True),
            ({"type": "any", "disable_parallel_tool_use": True}, ToolMode.REQUIRED, None, False),
            ({"type": "tool", "name": "add"}, ToolMode.REQUIRED, "add", False),
            ({"type": "none"}, ToolMode.NONE, None, True),
            (None, ToolMode.AUTO, None, True),
        ],
    )
    def test_tool_choice_says_how_freely_the_model_calls(
        self, given: Any, mode: ToolMode, name: str | None, parallel: bool
    ) -> None:
        choice = ask(tools=[ADD], tool_choice=given).tool_choice
        assert (choice.mode, choice.name, choice.parallel) == (mode, name, parallel)

    @pytest.mark.parametrize(
        "given", [{"type": "tool", "name": "sub"}, {"type": "tool"}, {"type": "required"}, {"type": ["any"]}, {}]
    )
    def test_a_tool_choice_that_cannot_be_is_refused(self, given: dict[str, Any]) -> None:
        assert (refusal(tools=[ADD], tool_choice=given).param or "").startswith("tool_choice")

    def test_a_demanded_call_needs_a_tool_that_was_kept(self) -> None:
        with pytest.raises(Refusal, match="none of `tools`"):
            read(body(tools=[SEARCH], tool_choice={"type": "any"}), drop_hosted=True)
        asked, _ = read(body(tools=[SEARCH], tool_choice={"type": "auto"}), drop_hosted=True)
        assert asked.request.tools == ()


class TestThinking:
    @pytest.mark.parametrize(
        ("given", "display", "effort", "budget"),
        [
            (None, Display.NONE, "none", None),
            ({"type": "disabled"}, Display.NONE, "none", None),
            ({"type": "enabled", "budget_tokens": 31_999}, Display.SHOWN, "medium", 31_999),
            ({"type": "enabled", "budget_tokens": 5}, Display.SHOWN, "medium", 5),
            ({"type": "adaptive"}, Display.SHOWN, "medium", None),
            ({"type": "adaptive", "display": "summarized"}, Display.SHOWN, "medium", None),
            ({"type": "adaptive", "display": "omitted"}, Display.OMITTED, "medium", None),
            ({"type": "between_tools"}, Display.SHOWN, "medium", None),
        ],
    )
    def test_its_kinds_become_an_effort_and_a_budget(
        self, given: Any, display: Display, effort: str, budget: int | None
    ) -> None:
        asked, _ = read(body(thinking=given))
        assert (asked.display, asked.request.reasoning_effort, asked.request.reasoning_budget) == (
            display,
            effort,
            budget,
        )

    def test_an_effort_counts_with_thinking_and_is_told_as_ignored_without(self) -> None:
        assert ask(thinking={"type": "adaptive"}, output_config={"effort": "xhigh"}).reasoning_effort == "xhigh"
        assert told(output_config={"effort": "low"}) == ["output_config.effort:ignored without thinking"]

    @pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "add"}])
    def test_a_demanded_call_turns_it_off_and_says_so(self, choice: dict[str, Any]) -> None:
        asked, warnings = read(body(tools=[ADD], tool_choice=choice, thinking={"type": "adaptive"}))
        assert (asked.display, asked.request.reasoning_effort) == (Display.NONE, "none")
        assert warnings == ["thinking:off, because tool_choice forces a call"]


class TestFormat:
    @pytest.mark.parametrize("fields", [{"output_config": {"format": FORM}}, {"output_format": FORM}])
    def test_the_answer_follows_a_schema_by_either_name(self, fields: dict[str, Any]) -> None:
        assert ask(**fields).constraint == JsonSchema(schema={"type": "object"}, strict=True)

    def test_the_newer_name_wins_and_the_other_is_told(self) -> None:
        other = {"type": "json_schema", "schema": {"type": "array"}}
        asked, warnings = read(body(output_config={"format": FORM}, output_format=other))
        assert asked.request.constraint == JsonSchema(schema={"type": "object"}, strict=True)
        assert warnings == ["output_format:ignored beside output_config.format"]


class TestWhatIsNotDone:
    @pytest.mark.parametrize(
        "field", ["metadata", "service_tier", "context_management", "betas", "cache_control", "some_future_field"]
    )
    def test_a_field_that_changes_nothing_is_told(self, field: str) -> None:
        assert told(**{field: {"a": [1]}}) == [f"{field}:ignored"]

    def test_marks_on_blocks_and_extras_of_tools_are_told_once_each(self) -> None:
        mark = {"type": "ephemeral"}
        block = {"type": "text", "text": "a", "cache_control": mark, "citations": [{}]}
        tools = [{**ADD, "cache_control": mark, "input_examples": [{}], "defer_loading": False}]
        assert told(messages=[{"role": "user", "content": [block, block]}], tools=tools) == [
            "cache_control:ignored",
            "citations:ignored",
            "tools.cache_control:ignored",
            "tools.input_examples:ignored",
        ]

    def test_a_strict_listener_refuses(self) -> None:
        def strict(field: str, what: str) -> None:
            raise Refusal(Code.INVALID_PARAMETER, what, param=field)

        with pytest.raises(Refusal) as caught:
            parse(body(metadata={"user_id": "u"}), request_id="r", defaults=DEFAULTS, drop_hosted=True, warn=strict)
        assert caught.value.param == "metadata"


def test_a_count_needs_no_max_tokens_and_takes_every_other_field() -> None:
    given = {"model": "tiny", "messages": HI, "system": "S", "tools": [ADD], "thinking": {"type": "adaptive"}}
    for more in ({}, {"max_tokens": 5, "stream": True, "stop_sequences": ["x"], "metadata": {}}):
        asked, _ = read(json.dumps({**given, **more}).encode(), counting=True)
        assert len(asked.request.messages) == 2
        assert len(asked.request.tools) == 1
