"""What a chat template keeps and what it drops or refuses, found out by rendering sentinel words."""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from pocketserver.chat import JsonValue
from pocketserver.engines.llama.sandbox import TemplateFault

Turn = dict[str, JsonValue]
Render = Callable[[Sequence[Turn], Sequence[JsonValue], Mapping[str, JsonValue]], str]
"""Renders exactly these turns with these tools and arguments; raises TemplateFault.

The generation prompt is written unless `add_generation_prompt` among the arguments is false.
"""

NO_PROMPT: Mapping[str, JsonValue] = {"add_generation_prompt": False}
"""The argument that leaves the generation prompt out."""
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")


class CallIds(StrEnum):
    """How the template wants call ids to look."""

    GIVEN = "given"
    NINE = "nine"
    """Exactly nine letters or digits."""
    FUNCTION = "function"
    """`functions.NAME:INDEX`: the id itself carries the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """One answer for each step of normalising. True means that the template keeps it as it is."""

    shows_calls: bool = False
    declares_tools: bool = False
    arguments_as_text: bool = False
    call_ids: CallIds = CallIds.GIVEN
    system_role: bool = True
    later_system: bool = True
    parallel_calls: bool = True
    text_beside_calls: bool = True
    text_before_calls: bool = True
    user_after_results: bool = True
    repeated_roles: bool = True
    assistant_first: bool = True
    system_alone: bool = True
    reasoning_field: str | None = None

    @property
    def supports_tools(self) -> bool:
        return self.shows_calls


def probe(render: Render) -> Traits:
    """Find the traits of a template. Some 30 small renders; never raises for what the template does."""
    prober = _Prober(render)
    traits = prober.call_form(prober.without_calls())
    return prober.with_calls(traits) if traits.shows_calls else traits


def sample_tool(name: str) -> JsonValue:
    """A tool whose name and words appear nowhere else."""
    text = {"type": "string", "description": "zqfield"}
    parameters = {"type": "object", "properties": {"zqkey": text, "zqother": text}, "required": []}
    return {"type": "function", "function": {"name": name, "description": "zqabout", "parameters": parameters}}


TOOLS = (sample_tool("zqalpha"), sample_tool("zqbeta"))


def answer_opening(render: Render) -> str:
    """What a template writes between a question and its answer; empty where it shows nothing of the kind."""
    with contextlib.suppress(TemplateFault):
        text = render([user(), assistant(), user("zqagain")], (), NO_PROMPT)
        return text.partition("zquser")[2].partition("zqanswer")[0]
    return ""


def user(text: str = "zquser") -> Turn:
    return {"role": "user", "content": text}


def assistant(text: str = "zqanswer", **fields: JsonValue) -> Turn:
    return {"role": "assistant", "content": text, **fields}


def system(text: str = "zqsystem") -> Turn:
    return {"role": "system", "content": text}


def call(
    traits: Traits, name: str = "zqalpha", place: int = 0, arguments: Mapping[str, JsonValue] | None = None
) -> JsonValue:
    """A call as this template takes it."""
    value = {"zqkey": "zqvalue"} if arguments is None else dict(arguments)
    written = json.dumps(value, ensure_ascii=False) if traits.arguments_as_text else value
    identity = call_id(traits.call_ids, name, place)
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": written}}


def result(traits: Traits, name: str = "zqalpha", place: int = 0, text: str = "zqresult") -> Turn:
    return {"role": "tool", "content": text, "name": name, "tool_call_id": call_id(traits.call_ids, name, place)}


def call_id(style: CallIds, name: str, place: int) -> str:
    """The id of the call at `place` of its message, in the style the template wants."""
    return f"functions.{name}:{place}" if style is CallIds.FUNCTION else f"abcdefgh{place % 10}"


class _Prober:
    def __init__(self, render: Render) -> None:
        self._render = render

    def keeps(self, turns: Sequence[Turn], *words: str) -> bool:
        """True when all words reach the prompt, and nothing is refused."""
        try:
            prompt = self._render(turns, TOOLS, {})
        except TemplateFault:
            return False
        return all(word in prompt for word in words)

    def without_calls(self) -> Traits:
        return Traits(
            declares_tools=self.keeps([user()], "zqalpha", "zqbeta"),
            system_role=self.keeps([system(), user()], "zqsystem", "zquser"),
            later_system=self.keeps([user("zqa"), assistant(), system("zqlater"), user("zqb")], "zqlater", "zqb"),
            repeated_roles=self.keeps(
                [user("zqa"), user("zqb"), assistant("zqc"), assistant("zqd"), user("zqe")],
                *("zqa", "zqb", "zqc", "zqd", "zqe"),
            ),
            assistant_first=self.keeps([assistant("zqa"), user("zqb")], "zqa", "zqb"),
            system_alone=self.keeps([system()], "zqsystem"),
        )

    def call_form(self, traits: Traits) -> Traits:
        """The ladder: object before text, plain ids before special ones."""
        for as_text in (False, True):
            for ids in (CallIds.NINE, CallIds.FUNCTION):
                tried = replace(traits, shows_calls=True, arguments_as_text=as_text, call_ids=ids)
                if self._shows(tried):
                    return replace(tried, call_ids=self._ids(tried))
        return traits

    def _shows(self, traits: Traits) -> bool:
        turns = [user(), assistant("", tool_calls=[call(traits)]), result(traits), assistant("zqdone"), user("zqlast")]
        return self._written(turns) and self.keeps(turns, "zqresult", "zqdone", "zqlast")

    def _written(self, turns: Sequence[Turn]) -> bool:
        """True when the call's name, key and value stand behind the user's text, not escaped a second time."""
        try:
            prompt = self._render(turns, TOOLS, {})
        except TemplateFault:
            return False
        written = prompt[prompt.find("zquser") :]
        return all(word in written for word in ("zqalpha", "zqkey", "zqvalue")) and '\\"zqvalue' not in written

    def _ids(self, traits: Traits) -> CallIds:
        """Nine characters are only asked for by templates that refuse another length."""
        if traits.call_ids is CallIds.FUNCTION:
            return CallIds.FUNCTION
        long = {**call(traits), "id": "call_0123456789abcdefghijklmn"}
        answer = {**result(traits), "tool_call_id": long["id"]}
        turns = [user(), assistant("", tool_calls=[long]), answer, assistant("zqdone"), user("zqlast")]
        return CallIds.GIVEN if self.keeps(turns, "zqalpha", "zqresult", "zqlast") else CallIds.NINE

    def with_calls(self, traits: Traits) -> Traits:
        one, two = call(traits), call(traits, "zqbeta", 1, {"zqkey": "zqsecond"})
        first, second = result(traits), result(traits, "zqbeta", 1, "zqtwo")
        calling = assistant("", tool_calls=[one])
        tail = [assistant("zqdone"), user("zqlast")]
        return replace(
            traits,
            parallel_calls=self._both([user(), assistant("", tool_calls=[one, two]), first, second, *tail]),
            text_beside_calls=self.keeps([user(), assistant("zqtext", tool_calls=[one]), first, *tail], "zqtext"),
            text_before_calls=self.keeps([user(), assistant("zqtext"), calling, first, *tail], "zqtext", "zqresult"),
            user_after_results=self.keeps([user(), calling, first, user("zqlast")], "zqresult", "zqlast"),
            reasoning_field=self._reasoning_field(one, first),
        )

    def _both(self, turns: Sequence[Turn]) -> bool:
        return self._written(turns) and self.keeps(turns, "zqsecond", "zqresult", "zqtwo", "zqlast")

    def _reasoning_field(self, one: JsonValue, first: Turn) -> str | None:
        for field in REASONING_FIELDS:
            turns = [user(), assistant("", tool_calls=[one], **{field: "zqthought"}), first]
            if self.keeps(turns, "zqthought", "zqresult"):
                return field
        return None
