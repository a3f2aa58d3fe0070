"""Turns a conversation into the plain dictionaries that a chat template can render without losing anything.

Steps that every template needs are done always; the others only where a probe showed that this template needs them.
"""

import json
from collections.abc import Mapping, Sequence

from pocketserver.chat import JsonValue, Message, Role, Tool, ToolCall
from pocketserver.errors import Code, Refusal

Turn = dict[str, JsonValue]


def split_prefill(messages: Sequence[Message]) -> tuple[Sequence[Message], str]:
    """Take a last assistant message away from the conversation: its text is what the answer continues.

    An empty one is a placeholder of a failed turn and is dropped. One that carries calls stays in the conversation.
    """
    if not messages or messages[-1].role is not Role.ASSISTANT or messages[-1].tool_calls:
        return messages, ""
    return messages[:-1], messages[-1].content


def turns(messages: Sequence[Message]) -> list[Turn]:
    """The conversation as templates expect it; raises Refusal for arguments that are no JSON object."""
    made = [_turn(index, message) for index, message in enumerate(messages)]
    return _merge_leading_system(_name_results([turn for turn in made if not _is_blank_answer(turn)]))


def tool_entries(tools: Sequence[Tool]) -> list[JsonValue]:
    """The tools as templates expect them: every description and schema is there, if only an empty one."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": _parameters(tool)},
        }
        for tool in tools
    ]


def object_schema(parameters: Mapping[str, JsonValue] | None) -> dict[str, JsonValue]:
    """A tool's parameters as a JSON Schema object; absent, empty and `[]` forms become the empty one."""
    schema = dict(parameters or {})
    schema["type"] = "object"
    properties = schema.get("properties")
    schema["properties"] = dict(properties) if isinstance(properties, Mapping) else {}
    if not isinstance(schema.get("required", []), list | tuple):
        del schema["required"]
    return schema


def arguments_of(call: ToolCall, param: str) -> dict[str, JsonValue]:
    """The call's arguments as an object; empty text is the empty object. Raises Refusal for anything else."""
    text = call.arguments.strip() or "{}"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Refusal(Code.INVALID_PARAMETER, f"{param} must be a JSON object written as text.", param=param)
    return value


def _parameters(tool: Tool) -> dict[str, JsonValue]:
    schema = object_schema(tool.parameters)
    ordered: dict[str, JsonValue] = {"type": "object"} | schema
    ordered["properties"] = {name: _described(value) for name, value in schema["properties"].items()}
    return ordered


def _described(schema: JsonValue) -> JsonValue:
    if not isinstance(schema, Mapping) or isinstance(schema.get("description"), str):
        return schema
    return {**schema, "description": ""}


def _turn(index: int, message: Message) -> Turn:
    turn: Turn = {"role": message.role.value, "content": message.content}
    if message.name is not None:
        turn["name"] = message.name
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": arguments_of(call, f"messages[{index}].tool_calls[{place}].function.arguments"),
                },
            }
            for place, call in enumerate(message.tool_calls)
        ]
    if message.tool_call_id:
        turn["tool_call_id"] = message.tool_call_id
    if message.reasoning:
        turn["reasoning"] = message.reasoning
    return turn


def _is_blank_answer(turn: Turn) -> bool:
    return turn["role"] == "assistant" and not turn["content"].strip() and "tool_calls" not in turn


def _name_results(conversation: list[Turn]) -> list[Turn]:
    """Give every call an id and every result its call's id and name; results without an id answer in order."""
    open_calls: list[Turn] = []
    for position, turn in enumerate(conversation):
        if turn["role"] == "assistant":
            open_calls = list(turn.get("tool_calls", ()))
            for place, call in enumerate(open_calls):
                call["id"] = call["id"] or f"call{position:03d}{place:02d}"
        elif turn["role"] == "tool":
            _answer(turn, open_calls)
    return conversation


def _answer(result: Turn, open_calls: list[Turn]) -> None:
    wanted = result.get("tool_call_id")
    matching = [call for call in open_calls if call["id"] == wanted] or (open_calls[:1] if not wanted else [])
    if matching:
        open_calls.remove(matching[0])
        result["tool_call_id"] = matching[0]["id"]
        result.setdefault("name", matching[0]["function"]["name"])
    result.setdefault("tool_call_id", "call00000")
    result.setdefault("name", "function")


def _merge_leading_system(conversation: list[Turn]) -> list[Turn]:
    leading = 0
    while leading < len(conversation) and conversation[leading]["role"] == "system":
        leading += 1
    if leading < 2:
        return conversation
    texts = [turn["content"] for turn in conversation[:leading] if turn["content"]]
    return [{"role": "system", "content": "\n\n".join(texts)}, *conversation[leading:]]
