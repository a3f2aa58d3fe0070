"""Runs a stranger's Jinja template: nothing outside is reached, and every step, size and loop has an end.

Jinja's own sandbox keeps a template away from Python's insides; the guards here keep it from using up memory and time.
Time is the processor time of the rendering thread, so that a busy machine makes no template a slow one.
What a single C call could still take is for the parent process to bound, which can end the child.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, TypeVar

import psutil
from jinja2 import TemplateError, Undefined, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import SandboxedEnvironment

from pocketserver.chat import JsonValue

T = TypeVar("T")

SOURCE_BYTES = 256 * 1024
STATEMENT_TOKENS = 200
"""Words and signs in one `{{ … }}` or `{% … %}`; models' own templates stay below 60."""
OUTPUT_CHARACTERS = 4 * 1024 * 1024
VALUE_CHARACTERS = 4 * 1024 * 1024
NUMBER_BITS = 4096
WIDTH = 10_000
"""The largest number that a filter or a string method may be given (a width, a count, an indent)."""
RENDER_SECONDS = 5.0
GROWTH_BYTES = 768 * 1024 * 1024
"""By so much the process may grow while a template is rendered; a model's own templates need next to nothing."""
_LOOK_SECONDS = 0.02
"""So often, in processor time, the memory is looked at: a look costs as much as a hundred steps."""
_REASON_CHARACTERS = 200

_WIDE_FILTERS = frozenset({"batch", "center", "indent", "slice", "truncate"})
_HARMFUL_FILTERS = ("pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr")
_TEXT_FILTERS = frozenset(
    {"capitalize", "center", "e", "escape", "forceescape", "format", "indent", "join", "lower", "replace", "safe"}
    | {"string", "title", "tojson", "trim", "truncate", "upper", "urlencode", "wordcount"}
)
"""Filters that write out whatever they are given."""
_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(?:\d{4}|\*)|\{[^{}]*(?:\d{4}|\{)")
_TIME_FORMAT = re.compile(r"(?:[^%]|%[-_^#]?[A-Za-z%])*")


class TemplateFault(Exception):  # noqa: N818 - it is the template's answer as often as a mistake
    """The template does not compile, fails, or refuses the conversation. The text may be shown to a person."""


class TemplateSlow(TemplateFault):
    """The processor time of a render is used up."""


class TemplateRefusal(TemplateFault):
    """The template itself called `raise_exception`; the text is its own."""


class Sandbox:
    """Compiles one template and renders it. Safe to use from several threads at once."""

    def __init__(self, source: str, *, clock: Callable[[], datetime], render_seconds: float = RENDER_SECONDS) -> None:
        """Raise TemplateFault for a source that is too large or does not compile."""
        if len(source.encode(errors="replace")) > SOURCE_BYTES:
            raise TemplateFault(f"the template is larger than {SOURCE_BYTES // 1024} KiB")
        self._environment = _Environment(clock, render_seconds)
        self._guarded(lambda: _check_statements(self._environment, source))
        self._template = self._guarded(lambda: self._environment.from_string(source))

    def render(self, variables: Mapping[str, JsonValue]) -> str:
        """Raise TemplateFault when the template fails, refuses, writes too much or takes too long."""
        return self._guarded(lambda: self._collect(variables))

    def _collect(self, variables: Mapping[str, JsonValue]) -> str:
        pieces, size = [], 0
        for piece in self._template.generate(variables):
            size += len(piece)
            if size > OUTPUT_CHARACTERS:
                raise TemplateFault(f"the prompt grows beyond {OUTPUT_CHARACTERS} characters")
            pieces.append(piece)
        return "".join(pieces)

    def _guarded(self, work: Callable[[], T]) -> T:
        self._environment.start_clock()
        try:
            return work()
        except TemplateFault:
            raise
        except RecursionError as error:
            raise TemplateFault("the template is nested too deeply") from error
        except MemoryError as error:
            raise TemplateFault("the template needs too much memory") from error
        except TemplateError as error:
            raise TemplateFault(one_line(str(error)) or type(error).__name__) from error
        except Exception as error:
            raise TemplateFault(f"{type(error).__name__}: {one_line(str(error))}") from error


def one_line(text: str) -> str:
    """A stranger's text fit for an error message: printable, in one line, and not long."""
    words = "".join(char if char.isprintable() else " " for char in text[: 8 * _REASON_CHARACTERS]).split()
    line = " ".join(words)
    return line if len(line) <= _REASON_CHARACTERS else f"{line[:_REASON_CHARACTERS].rstrip()}…"


def _check_statements(environment: SandboxedEnvironment, source: str) -> None:
    """Refuse endless expressions: long chains take Python's compiler seconds, and gigabytes before it gives up."""
    length = 0
    for _, kind, _ in environment.lex(source):
        length = 0 if kind in ("block_begin", "variable_begin") else length + (kind != "whitespace")
        if length > STATEMENT_TOKENS:
            raise TemplateFault(f"a statement of the template has more than {STATEMENT_TOKENS} words")


class _BoundedCode(CodeGenerator):  # type: ignore[misc]
    """Jinja's compiler under the clock, with `a ~ b` joined under a limit: that operator has no hook of its own."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        self.environment.check_clock()
        return super().visit(node, *args, **kwargs)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - Jinja's visitor names
        self.write("environment.join((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class _Generation(Extension):  # type: ignore[misc]
    """`{% generation %}…{% endgeneration %}` marks what a model wrote, for training; rendering only shows it."""

    tags = {"generation"}  # noqa: RUF012 - declared so by Jinja

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class _Environment(SandboxedEnvironment):  # type: ignore[misc]
    """Jinja's sandbox with limits on operators, calls, loops and filters."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})
    code_generator_class = _BoundedCode

    def __init__(self, clock: Callable[[], datetime], render_seconds: float) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,
            finalize=_limited_whole,
            optimized=False,  # folding constants takes cubic time on long chains, and saves next to nothing here
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        self._render_seconds = render_seconds
        self._deadline = threading.local()
        del self.globals["lipsum"]
        for name in _HARMFUL_FILTERS:
            del self.filters[name]
        self.filters.update({name: _bounded_filter(name, filter_) for name, filter_ in self.filters.items()})
        self.filters.update({"tojson": to_json, "from_json": _from_json})
        self.globals |= {"raise_exception": _raise, "strftime_now": lambda text: _strftime(clock(), text)}

    def start_clock(self) -> None:
        now = time.thread_time()
        self._deadline.at = now + self._render_seconds
        self._deadline.look = now + _LOOK_SECONDS
        self._deadline.most_bytes = resident_bytes() + GROWTH_BYTES

    def check_clock(self) -> None:
        """Called at each turn of a loop, call and operation."""
        now = time.thread_time()
        if now > self._deadline.at:
            raise TemplateSlow(f"rendering takes longer than {self._render_seconds:g} seconds of processor time")
        if now > self._deadline.look:
            self._deadline.look = now + _LOOK_SECONDS
            if resident_bytes() > self._deadline.most_bytes:
                raise TemplateFault("the template needs too much memory")

    def counted(self, iterable: Iterable[object]) -> Iterable[object]:
        """The same items, with a look at the clock before each. A list keeps its length for `loop.length`."""
        return () if isinstance(iterable, Undefined) else _Counted(iterable, self.check_clock)

    def join(self, parts: Iterable[object]) -> str:
        self.check_clock()
        texts = [str(_limited_whole(part)) for part in parts]
        _limit(sum(map(len, texts)))
        return "".join(texts)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Parse, and make each `for` ask the clock at every turn."""
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = nodes.Call(nodes.EnvironmentAttribute("counted"), [loop.iter], [], None, None)
        tree.set_environment(self)
        return tree

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Jinja's safe `str.format`, which must not be asked for endless padding either."""
        safe = super().wrap_str_format(value)
        if safe is None:
            return None

        def bounded(*args: Any, **kwargs: Any) -> str:
            _check_format(value.__self__)
            return _limited_text(safe(*args, **kwargs))

        return bounded

    def call_binop(self, context: object, operator: str, left: Any, right: Any) -> Any:
        self.check_clock()
        _OPERATOR_LIMITS[operator](left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, target: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.check_clock()
        owner = getattr(target, "__self__", None)
        if isinstance(owner, str):
            args = tuple(list(value) if isinstance(value, Iterator) else value for value in args)
            _check_text_call(owner, target.__name__, (*args, *kwargs.values()))
        return super().call(context, target, *args, **kwargs)


class _Counted:
    def __init__(self, items: Iterable[object], check: Callable[[], None]) -> None:
        self._items = items
        self._check = check

    def __iter__(self) -> Iterator[object]:
        for item in self._items:
            self._check()
            yield item

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]


def to_json(
    value: JsonValue,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on it: nothing HTML-escaped, keys in their order, text as it is."""
    _limited_whole(value)
    if isinstance(indent, int) and not 0 <= indent <= 16:
        raise TemplateFault("an indent of that width is not written")
    if separators is not None:
        separators = (str(separators[0]), str(separators[1]))
        _limit(WIDTH * max(map(len, separators)))
    return _limited_text(
        json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
            default=_json_default,
        )
    )


def _json_default(value: object) -> JsonValue:
    if isinstance(value, Undefined):
        raise TemplateFault(f"an undefined value is written as JSON ({value._undefined_name})")  # noqa: SLF001
    if isinstance(value, Iterable):
        return list(value)
    raise TemplateFault(f"a {type(value).__name__} cannot be written as JSON")


def _from_json(text: str) -> JsonValue:
    return json.loads(_limited_text(str(text)))


def _raise(text: object = "") -> None:
    raise TemplateRefusal(one_line(str(text)) or "it gives no reason")


def resident_bytes() -> int:
    """Memory of this process."""
    return int(psutil.Process().memory_info().rss)


def _strftime(now: datetime, text: object) -> str:
    wanted = str(text)
    if len(wanted) > 200 or not _TIME_FORMAT.fullmatch(wanted):
        raise TemplateFault("strftime_now is called with a format that is not written")
    return now.strftime(wanted)


def _bounded_filter(name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
    def bounded(*args: Any, **kwargs: Any) -> Any:
        texts = tuple(argument for argument in args if isinstance(argument, str))
        numbers = [argument for argument in (*args, *kwargs.values()) if isinstance(argument, int)]
        if name in _WIDE_FILTERS and any(abs(number) > WIDTH for number in numbers):
            raise TemplateFault(f"'{name}' is called with a number beyond {WIDTH}")
        if name in _TEXT_FILTERS:
            args = tuple(list(value) if isinstance(value, Iterator) else value for value in args)
            _limited_whole([*args, *kwargs.values()])
        if name in {"replace", "format"} and texts:
            _check_text_call(texts[0], name, texts[1:])
        if name == "join" and len(args) > 2 and isinstance(args[2], str):  # context, items, separator
            _check_text_call(args[2], name, args[1:2])
        return _limited(filter_(*args, **kwargs))

    bounded.__dict__.update(getattr(filter_, "__dict__", {}))  # keeps Jinja's pass_environment marks
    return bounded


def _limit(size: int) -> None:
    if size > VALUE_CHARACTERS:
        raise TemplateFault(f"a value grows beyond {VALUE_CHARACTERS} characters")


def _limited_text(text: str) -> str:
    _limit(len(text))
    return text


def _limited(value: object) -> object:
    if isinstance(value, str | list | tuple):
        _limit(len(value))
    return value


def _limited_whole(value: object) -> object:
    """The value itself; refused when all the text in it, counted as often as it would be written, is too much."""
    size, waiting = 0, [value]
    while waiting:
        part = waiting.pop()
        size += len(part) if isinstance(part, str | bytes) else 32 * (1 + _size(part))
        _limit(size)
        if isinstance(part, Mapping):
            waiting.extend(part)
            waiting.extend(part.values())
        elif isinstance(part, list | tuple | set | frozenset):
            waiting.extend(part)
    return value


def _check_format(text: str) -> None:
    if _WIDE_FORMAT.search(text):
        raise TemplateFault("a format asks for more width than is written")


def _check_text_call(text: str, method: str, arguments: tuple[object, ...]) -> None:
    """Refuse a string method or filter whose result would be out of proportion."""
    if any(isinstance(argument, int) and abs(argument) > WIDTH for argument in arguments):
        raise TemplateFault(f"'{method}' is called with a number beyond {WIDTH}")
    if method == "format":
        _check_format(text)
    texts = [argument for argument in arguments if isinstance(argument, str)]
    if method == "replace" and len(texts) >= 2:
        _limit((text.count(texts[0]) if texts[0] else len(text) + 1) * len(texts[1]) + len(text))
    if method == "expandtabs":
        raise TemplateFault("'expandtabs' is not offered")
    if method == "join" and arguments and isinstance(arguments[0], list | tuple | dict | set | str):
        _limit(sum(_size(item) + len(text) for item in arguments[0]))
    _limited_whole(arguments)


def _size(value: object) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple | dict | set) else 0


def _bits(value: object) -> int:
    return value.bit_length() if isinstance(value, int) else 0


def _limit_product(left: object, right: object) -> None:
    if _bits(left) + _bits(right) > NUMBER_BITS:
        raise TemplateFault("a number in the template is too large")
    for sequence, count in ((left, right), (right, left)):
        if isinstance(count, int):
            _limit(_size(sequence) * max(count, 0))


def _limit_power(left: object, right: object) -> None:
    if isinstance(right, int) and _bits(left) * max(right, 0) > NUMBER_BITS:
        raise TemplateFault("a number in the template is too large")


def _limit_sum(left: object, right: object) -> None:
    _limit(_size(left) + _size(right))


def _limit_format(left: object, right: object) -> None:
    if isinstance(left, str):
        _check_format(left)
        _limited_whole((left, right))


_OPERATOR_LIMITS: Mapping[str, Callable[[object, object], None]] = {
    "*": _limit_product,
    "**": _limit_power,
    "+": _limit_sum,
    "%": _limit_format,
}
