"""Reads the calls of one block: names and arguments, in whichever form the model writes them."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, assert_never

from pocketserver.chat import JsonValue, Tool
from pocketserver.engines.llama.call_values import bare_arguments, json_text, python_arguments
from pocketserver.engines.llama.incoming import Incoming, NotACall, Reading, held_back, pieces_of
from pocketserver.engines.llama.tool_syntax import JsonForm, NamedForm, TaggedForm, ToolSyntax, ValueStyle


class CallSink(Protocol):
    """Where calls go as they are read."""

    def started(self, name: str) -> None:
        """A name is known. Raises NotACall for one that no tool has."""
        ...

    def arguments(self, text: str) -> None:
        """More JSON text of the arguments."""
        ...

    def finished(self) -> None:
        """The call is whole."""
        ...


class CallReader:
    """Reads from the first opening mark to the end of the block. Raises NotACall where the text is none."""

    def __init__(
        self, incoming: Incoming, syntax: ToolSyntax, tools: Sequence[Tool], sink: CallSink, plain: Callable[[str], str]
    ) -> None:
        """`plain` gives the text of special tokens back; `tools` say which arguments are strings."""
        self._incoming = incoming
        self._syntax = syntax
        self._sink = sink
        self._plain = plain
        self._properties = {tool.name: _properties(tool) for tool in tools}
        self._call_close = pieces_of(syntax.call_close)
        self._block_close = pieces_of(syntax.block_close)
        self._next_call = pieces_of(syntax.separator) + pieces_of(syntax.call_open)

    def read(self) -> Reading[None]:
        yield from self._incoming.expect(pieces_of(self._syntax.opening))
        while True:
            yield from self._call()
            yield from self._end_of_call()
            self._sink.finished()
            if not (yield from self._another()):
                return

    def _end_of_call(self) -> Reading[None]:
        """The closing mark, which the end of the reply may stand for."""
        yield from self._incoming.skip_space()
        if self._incoming.at < len(self._incoming.text):
            yield from self._incoming.expect(self._call_close)
        elif isinstance(self._syntax.form, TaggedForm) and self._call_close:
            raise NotACall

    def _another(self) -> Reading[bool]:
        """Whether the block goes on. Calls without a block begin anew, and are found as the first was."""
        if not (self._syntax.block_open or self._block_close):
            return False
        options = [pieces for pieces in (self._next_call, self._block_close) if pieces]
        found = yield from self._incoming.choose(options)
        return found == 0 and options[0] is self._next_call

    def _call(self) -> Reading[None]:
        match self._syntax.form:
            case JsonForm() as form if form.name_key is None:
                yield from self._named_object()
            case JsonForm() as form:
                yield from self._object(form)
            case NamedForm() as form:
                name = yield from self._incoming.name()
                yield from self._incoming.expect(pieces_of(form.after_name))
                yield from self._json_arguments(name)
            case TaggedForm() as form:
                yield from self._tagged(form)
            case never:
                assert_never(never)

    def _json_arguments(self, name: str) -> Reading[None]:
        yield from self._incoming.skip_space()
        yield from self._incoming.choose([("{",)], consume=False)
        if not self._incoming.text.startswith("{", self._incoming.at):
            raise NotACall
        self._sink.started(name)
        yield from self._incoming.json_value(self._emit)

    def _emit(self, text: str) -> None:
        self._sink.arguments(self._plain(text))

    def _named_object(self) -> Reading[None]:
        yield from self._incoming.expect(("{",))
        name = yield from self._string()
        yield from self._incoming.expect((":",))
        yield from self._json_arguments(name)
        yield from self._incoming.expect(("}",))

    def _object(self, form: JsonForm) -> Reading[None]:
        """`{"name": …, "arguments": {…}}` in any order; arguments that come before the name wait for it."""
        name, waiting = "", ""
        yield from self._incoming.expect(("{",))
        while True:
            key = yield from self._string()
            yield from self._incoming.expect((":",))
            if key == form.name_key:
                name = yield from self._string()
                if waiting:
                    self._give(name, waiting)
            elif key == form.arguments_key and name:
                yield from self._json_arguments(name)
            else:
                value = yield from self._collected()
                waiting = value if key == form.arguments_key else waiting
            end = yield from self._incoming.choose([(",",), ("}",)])
            if end is None or (end == 1 and not name):
                raise NotACall
            if end == 1:
                return

    def _give(self, name: str, arguments: str) -> None:
        if not arguments.startswith("{"):
            raise NotACall
        self._sink.started(name)
        self._sink.arguments(arguments)

    def _collected(self) -> Reading[str]:
        collected: list[str] = []
        yield from self._incoming.json_value(collected.append)
        return self._plain("".join(collected))

    def _string(self) -> Reading[str]:
        text = yield from self._collected()
        try:
            value = json.loads(text)
        except ValueError as error:
            raise NotACall from error
        if not isinstance(value, str):
            raise NotACall
        return value

    def _tagged(self, form: TaggedForm) -> Reading[None]:
        name = yield from self._incoming.name()
        yield from self._incoming.expect(pieces_of(form.after_name))
        if form.style in (ValueStyle.PYTHON, ValueStyle.BARE_KEYS):
            yield from self._all_at_once(form, name)
            return
        self._sink.started(name)
        self._sink.arguments("{")
        separator = ""
        while (yield from self._argument_follows(form)):
            yield from self._incoming.choose([pieces_of(form.separator) or ("",)])
            yield from self._incoming.expect(pieces_of(form.key_open))
            self._sink.arguments(separator)
            yield from self._argument(form, name)
            separator = ", "
        self._sink.arguments("}")

    def _argument_follows(self, form: TaggedForm) -> Reading[bool]:
        ends = self._call_close or self._block_close
        options = [pieces_of(form.separator) + pieces_of(form.key_open), pieces_of(form.key_open), ends]
        found = yield from self._incoming.choose([option or ("",) for option in options], consume=False)
        if found is None:
            raise NotACall
        return found < 2

    def _argument(self, form: TaggedForm, name: str) -> Reading[None]:
        variants = [pieces_of(text) for _, text in form.key_close]
        first = variants[0][0] if len(variants) == 1 else _shared_start(variants)
        key = self._plain((yield from self._incoming.until(str(first)))).strip()
        number = yield from self._incoming.choose(variants)
        if number is None:
            raise NotACall
        self._sink.arguments(json.dumps(key, ensure_ascii=False) + ": ")
        written_type = form.key_close[number][0] if len(variants) > 1 else self._declared_type(name, key)
        if written_type == "string" and form.style is ValueStyle.RAW:
            yield from self._raw_string(form, form.key_close[number][1])
        else:
            value = yield from self._incoming.until(form.value_close.split()[0])
            self._sink.arguments(json_text(_trimmed(self._plain(value), form, form.key_close[number][1])))
        yield from self._incoming.expect(pieces_of(form.value_close))

    def _declared_type(self, name: str, key: str) -> str:
        schema = self._properties.get(name, {}).get(key)
        declared = schema.get("type") if isinstance(schema, Mapping) else None
        return declared if isinstance(declared, str) else "any"

    def _raw_string(self, form: TaggedForm, key_close: str) -> Reading[None]:
        """Text up to its closing mark, without the one newline on each side that belongs to the marks."""
        mark = str(pieces_of(form.value_close)[0])
        marks = (mark, "\n" + mark) if form.value_close.startswith("\n") else (mark,)
        self._sink.arguments('"')
        incoming = self._incoming
        if key_close.endswith("\n"):
            while incoming.at == len(incoming.text):
                yield from incoming.more()
            incoming.at += incoming.text.startswith("\n", incoming.at)
        while (end := incoming.text.find(mark, incoming.at)) < 0:
            self._hand_on_escaped(len(incoming.text) - held_back(incoming.text[incoming.at :], marks))
            yield from incoming.more()
        trimmed = end - (len(marks) > 1 and end > incoming.at and incoming.text[end - 1] == "\n")
        self._hand_on_escaped(trimmed)
        incoming.at = end
        self._sink.arguments('"')

    def _hand_on_escaped(self, end: int) -> None:
        text = self._plain(self._incoming.text[self._incoming.at : end])
        self._incoming.at = max(self._incoming.at, end)
        if text:
            self._sink.arguments(json.dumps(text, ensure_ascii=False)[1:-1])

    def _all_at_once(self, form: TaggedForm, name: str) -> Reading[None]:
        """Notations in which a value's end shows only at the end of the call."""
        incoming, begin = self._incoming, self._incoming.at
        close = str((self._block_close or self._call_close)[0])
        yield from incoming.until(close)
        text = incoming.text[: incoming.at + len(close)]
        if form.style is ValueStyle.PYTHON:
            arguments, incoming.at = python_arguments(text[: incoming.at], begin)
        else:
            arguments, incoming.at = bare_arguments(text, begin, form.string_quote)
        self._sink.started(name)
        self._sink.arguments(self._plain(json.dumps(arguments, ensure_ascii=False)))


def _properties(tool: Tool) -> Mapping[str, JsonValue]:
    properties = tool.parameters.get("properties") if isinstance(tool.parameters, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}


def _trimmed(value: str, form: TaggedForm, key_close: str) -> str:
    value = value[1:] if key_close.endswith("\n") and value.startswith("\n") else value
    return value[:-1] if form.value_close.startswith("\n") and value.endswith("\n") else value


def _shared_start(variants: Sequence[tuple[object, ...]]) -> str:
    """What all variants begin with: there a key ends."""
    texts = [str(variant[0]) for variant in variants]
    shared = texts[0]
    while not all(text.startswith(shared) for text in texts):
        shared = shared[:-1]
    if not shared:
        raise NotACall
    return shared
