"""What holds a reply: the grammar of its calls, the format of its answer, or both, behind thinking where there is some.

Refusals name the field at fault: a tool's own schema, or that of the response format.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import msgspec

from pocketserver.chat import Constraint, GenerationRequest, JsonSchema, JsonValue, Tool, ToolMode
from pocketserver.engines.llama.constraint import Compiler, GrammarFault, TokenConstraint
from pocketserver.engines.llama.frames import SCHEMA_PARAM
from pocketserver.engines.llama.normalise import object_schema
from pocketserver.engines.llama.schema_check import SchemaFault, prepared
from pocketserver.engines.llama.tool_grammar import Thinking, answer_grammar, tool_grammar
from pocketserver.engines.llama.tool_syntax import ReplyFormat
from pocketserver.engines.llama.value_grammar import closed
from pocketserver.errors import Code, Refusal

_ANSWER = "@answer"
_MOST_KEPT = 32
_MOST_KEPT_BYTES = 1024 * 1024
"""Of the text that constraints were made from; a compiled one takes some ten times as much."""


def may_call(request: GenerationRequest) -> bool:
    """Whether the reply to this request may hold calls."""
    return bool(request.tools) and request.tool_choice.mode is not ToolMode.NONE and request.prompt is None


class ReplyConstraints:
    """Makes the constraints for one model. `is_special` gives the id of a text that is one special token.

    The last ones are kept: a conversation sends the same tools with every turn. Belongs to one thread.
    """

    def __init__(self, compiler: Compiler, reply_format: ReplyFormat, is_special: Callable[[str], int | None]) -> None:
        self._compiler = compiler
        self._format = reply_format
        self._is_special = is_special
        self._kept: OrderedDict[bytes, TokenConstraint] = OrderedDict()
        """By everything that a constraint depends on, the least recently used first."""

    def compile(self, request: GenerationRequest, thinking: Thinking) -> TokenConstraint | None:
        """What holds the reply, or None when it is free. Raises Refusal(INVALID_PARAMETER) at the field at fault."""
        if not may_call(request) and request.constraint is None:
            return None
        key = _key(request, thinking)
        found = self._kept.pop(key, None) or self._compiled(request, thinking)
        if found is not None:
            self._keep(key, found)
            return found.anew()
        return None

    def _keep(self, key: bytes, constraint: TokenConstraint) -> None:
        self._kept[key] = constraint
        while len(self._kept) > _MOST_KEPT or (len(self._kept) > 1 and sum(map(len, self._kept)) > _MOST_KEPT_BYTES):
            self._kept.popitem(last=False)

    def _compiled(self, request: GenerationRequest, thinking: Thinking) -> TokenConstraint | None:
        if may_call(request):
            return self._calls(request, thinking)
        if request.constraint is None:
            return None
        if request.prompt is not None or (thinking is Thinking.NONE and not self._format.wrappers):
            return self._compiler.compile(request.constraint)
        lark = answer_grammar(self._format, self._is_special, thinking=thinking, answer=_ANSWER)
        return self._behind(lark, request.constraint)

    def _calls(self, request: GenerationRequest, thinking: Thinking) -> TokenConstraint:
        _check(request.tools)
        must_call = request.tool_choice.mode is ToolMode.REQUIRED
        constraint = None if must_call else request.constraint
        try:
            lark = tool_grammar(
                self._format,
                request.tools,
                request.tool_choice,
                self._is_special,
                thinking=thinking,
                prepare=_prepared,
                answer=None if constraint is None else _ANSWER,
            )
            if constraint is None:
                return self._compiler.compile_grammar(lark)
            return self._behind(lark, constraint)
        except (SchemaFault, GrammarFault) as fault:
            raise self._tool_at_fault(request.tools, fault) from fault

    def _behind(self, lark: str, constraint: Constraint) -> TokenConstraint:
        try:
            return self._compiler.compile_behind(lark, constraint)
        except GrammarFault as fault:
            raise _invalid(
                f"The answer's format cannot be held: {fault}. Use a simpler schema.", SCHEMA_PARAM
            ) from fault

    def _tool_at_fault(self, tools: Sequence[Tool], fault: Exception) -> Refusal:
        """The refusal of the first tool whose schema fails by itself."""
        for number, tool in enumerate(tools):
            param = _place(number)
            try:
                self._compiler.compile(JsonSchema(schema=closed(object_schema(tool.parameters))), param=param)
            except Refusal as refusal:
                return refusal
        return _invalid(f"The tools cannot be held to their schemas: {fault}. Use simpler ones.", "tools")


def _key(request: GenerationRequest, thinking: Thinking) -> bytes:
    parts = (request.tools, request.tool_choice, request.constraint, thinking, request.prompt is None)
    return msgspec.msgpack.encode(parts)


def _check(tools: Sequence[Tool]) -> None:
    """Name a tool whose schema has a keyword that no grammar of ours holds, whichever form its calls take."""
    for number, tool in enumerate(tools):
        try:
            prepared(closed(object_schema(tool.parameters)))
        except SchemaFault as fault:
            raise _invalid(str(fault), _place(number)) from fault


def _place(number: int) -> str:
    return f"tools[{number}].function.parameters"


def _prepared(schema: dict[str, JsonValue]) -> Mapping[str, JsonValue]:
    return prepared(schema)


def _invalid(message: str, param: str) -> Refusal:
    return Refusal(Code.INVALID_PARAMETER, message, param=param)
