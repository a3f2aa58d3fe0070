"""Turns a conversation into the plain dictionaries that a chat template can render without losing anything.

Steps that every template needs are done always; the others only where a probe showed that this template needs them.
"""

import json
from collections.abc import Callable, Mapping, Sequence

from pocketserver.chat import JsonValue, Message, Role, Tool, ToolCall
from pocketserver.engines.llama.traits import REASONING_FIELDS, CallIds, Traits, Turn, call_id
from pocketserver.errors import Code, Refusal


def split_prefill(messages: Sequence[Message]) -> tuple[Sequence[Message], str]:
    """Take a last assistant message away from the conversation: its text is what the answer continues.

    An empty one is a placeholder of a failed turn and is dropped. One that carries calls stays in the conversation.
    """
    if not messages or messages[-1].role is not Role.ASSISTANT or messages[-1].tool_calls:
        return messages, ""
    return messages[:-1], messages[-1].content


def turns(messages: Sequence[Message], traits: Traits) -> list[Turn]:
    """The conversation as this template takes it; raises Refusal for arguments that are no JSON object."""
    made = [_turn(index, message) for index, message in enumerate(messages)]
    conversation = _merge_leading_system(_name_results([turn for turn in made if not _is_blank_answer(turn)]))
    for kept, step in _STEPS:
        if not kept(traits):
            conversation = step(conversation)
    return _finish(conversation, traits)


def tool_entries(tools: Sequence[Tool]) -> list[JsonValue]:
    """The tools as templates expect them: every description and schema is there, if only an empty one."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": _parameters(tool)},
        }
        for tool in tools
    ]


def with_tool_list(messages: Sequence[Message], tools: Sequence[Tool]) -> Sequence[Message]:
    """Tell of the tools in a system message, for templates that write calls but no list of tools."""
    entries = "\n".join(json.dumps(entry, ensure_ascii=False) for entry in tool_entries(tools))
    text = f"You can call these functions:\n{entries}"
    return (Message(role=Role.SYSTEM, content=text), *messages)


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


def _tell_calls_as_text(conversation: list[Turn]) -> list[Turn]:
    return [_told(turn) for turn in conversation]


def _told(turn: Turn) -> Turn:
    if turn["role"] == "tool":
        return {"role": "user", "content": f"Result of {turn['name']}:\n{turn['content']}"}
    if "tool_calls" not in turn:
        return turn
    calls = [f"Called {_name(call)} with {_written(call)}" for call in turn["tool_calls"]]
    return {"role": "assistant", "content": "\n".join([turn["content"], *calls] if turn["content"] else calls)}


def _name(call: JsonValue) -> str:
    return str(call["function"]["name"])


def _written(call: JsonValue) -> str:
    return json.dumps(call["function"]["arguments"], ensure_ascii=False)


def _one_call_a_message(conversation: list[Turn]) -> list[Turn]:
    """Call, call, result, result becomes call, result, call, result."""
    made: list[Turn] = []
    for position, turn in enumerate(conversation):
        if turn["role"] == "tool" and _is_paired(conversation, position):
            continue
        calls = turn.get("tool_calls", ())
        if len(calls) < 2:
            made.append(turn)
            made.extend(_results(conversation, position, calls))
            continue
        for place, call in enumerate(calls):
            made.append({**turn, "content": "" if place else turn["content"], "tool_calls": [call]})
            made.extend(_results(conversation, position, [call]))
    return made


def _results(conversation: list[Turn], position: int, calls: Sequence[JsonValue]) -> list[Turn]:
    """The results that directly follow the turn at `position` and answer one of these calls."""
    ids = {call["id"] for call in calls}
    found = []
    for turn in conversation[position + 1 :]:
        if turn["role"] != "tool":
            break
        if turn["tool_call_id"] in ids:
            found.append(turn)
    return found


def _is_paired(conversation: list[Turn], position: int) -> bool:
    before = position
    while before >= 0 and conversation[before]["role"] == "tool":
        before -= 1
    calls = conversation[before].get("tool_calls", ()) if before >= 0 else ()
    return conversation[position]["tool_call_id"] in {call["id"] for call in calls}


def _text_before_calls(conversation: list[Turn]) -> list[Turn]:
    made: list[Turn] = []
    for turn in conversation:
        if "tool_calls" in turn and turn["content"]:
            made.append({"role": "assistant", "content": turn["content"]})
            turn = {**turn, "content": ""}  # noqa: PLW2901 - the same turn without its text
        made.append(turn)
    return made


def _later_system_to_user(conversation: list[Turn]) -> list[Turn]:
    return conversation[:1] + [
        {**turn, "role": "user"} if turn["role"] == "system" else turn for turn in conversation[1:]
    ]


def _system_into_user(conversation: list[Turn]) -> list[Turn]:
    if not conversation or conversation[0]["role"] != "system":
        return conversation
    text, rest = conversation[0]["content"], conversation[1:]
    if rest and rest[0]["role"] == "user":
        return [{**rest[0], "content": f"{text}\n\n{rest[0]['content']}"}, *rest[1:]]
    return [{"role": "user", "content": text}, *rest]


def _answer_after_results(conversation: list[Turn]) -> list[Turn]:
    made: list[Turn] = []
    for turn in conversation:
        if made and turn["role"] == "user" and (made[-1]["role"] == "tool" or "tool_calls" in made[-1]):
            made.append({"role": "assistant", "content": "Done."})
        made.append(turn)
    return made


def _merge_neighbours(conversation: list[Turn]) -> list[Turn]:
    made: list[Turn] = []
    for turn in conversation:
        if made and made[-1]["role"] == turn["role"] != "tool" and "tool_calls" not in made[-1]:
            joined = "\n\n".join(text for text in (made[-1]["content"], turn["content"]) if text)
            made[-1] = {**made[-1], **turn, "content": joined}
        else:
            made.append(turn)
    return made


def _user_first(conversation: list[Turn]) -> list[Turn]:
    leading = 1 if conversation and conversation[0]["role"] == "system" else 0
    if len(conversation) > leading and conversation[leading]["role"] != "assistant":
        return conversation
    return [*conversation[:leading], {"role": "user", "content": ""}, *conversation[leading:]]


def _user_after_lone_system(conversation: list[Turn]) -> list[Turn]:
    if any(turn["role"] != "system" for turn in conversation):
        return conversation
    return [*conversation, {"role": "user", "content": ""}]


_STEPS: tuple[tuple[Callable[[Traits], bool], Callable[[list[Turn]], list[Turn]]], ...] = (
    (lambda traits: traits.shows_calls, _tell_calls_as_text),
    (lambda traits: traits.parallel_calls, _one_call_a_message),
    (lambda traits: traits.text_beside_calls or not traits.text_before_calls, _text_before_calls),
    (lambda traits: traits.later_system, _later_system_to_user),
    (lambda traits: traits.system_role, _system_into_user),
    (lambda traits: traits.user_after_results, _answer_after_results),
    (lambda traits: traits.repeated_roles, _merge_neighbours),
    (lambda traits: traits.assistant_first, _user_first),
    (lambda traits: traits.system_alone, _user_after_lone_system),
)
"""Which trait makes a step unnecessary, in the order in which the steps build on each other."""


def _finish(conversation: list[Turn], traits: Traits) -> list[Turn]:
    """Write ids, arguments and reasoning in the forms this template reads."""
    known: dict[str, str] = {}
    for turn in conversation:
        for place, call in enumerate(turn.get("tool_calls", ())):
            known[call["id"]] = _id_for(traits.call_ids, call, place, len(known))
            call["id"] = known[call["id"]]
            if traits.arguments_as_text:
                call["function"]["arguments"] = _written(call)
        if turn["role"] == "tool":
            turn["tool_call_id"] = known.get(turn["tool_call_id"], turn["tool_call_id"])
        _place_reasoning(turn, traits.reasoning_field)
    return conversation


def _id_for(style: CallIds, call: JsonValue, place: int, count: int) -> str:
    match style:
        case CallIds.GIVEN:
            return str(call["id"])
        case CallIds.NINE:
            return f"call{count:05d}"
        case CallIds.FUNCTION:
            return call_id(style, _name(call), place)


def _place_reasoning(turn: Turn, field: str | None) -> None:
    """Keep thoughts only in the one field that the template reads, and never beside text that would exclude them."""
    thought = next((turn.pop(name) for name in REASONING_FIELDS if name in turn), None)
    if thought and field is not None and not ("tool_calls" in turn and turn["content"] and field == "thinking"):
        turn[field] = thought
