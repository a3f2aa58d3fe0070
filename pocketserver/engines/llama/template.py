"""A model's chat template: from messages and tools to the text of the prompt."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property

from pocketserver.chat import JsonValue, Message, Tool
from pocketserver.engines.llama import normalise
from pocketserver.engines.llama.reasoning import derive_marks, is_opened
from pocketserver.engines.llama.sandbox import RENDER_SECONDS, Sandbox, TemplateFault, TemplateSlow
from pocketserver.engines.llama.tool_syntax import ReasoningMarks
from pocketserver.engines.llama.traits import Traits, Turn, probe
from pocketserver.errors import Code, Refusal

RESERVED_ARGUMENTS = frozenset(
    {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "raise_exception", "strftime_now"}
    | {"namespace", "range", "dict", "cycler", "joiner", "date_string"}
)
"""Names that a client's template arguments never replace."""


_LARGE_TURNS = 500
_LARGE_CHARACTERS = 1_000_000


def local_now() -> datetime:
    return datetime.now().astimezone()


class ChatTemplate:
    """One template with the text of its begin and end tokens. Nothing is raised before the first `render`.

    `clock` gives the local time for templates that write the date.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        clock: Callable[[], datetime] = local_now,
        render_seconds: float = RENDER_SECONDS,
    ) -> None:
        self.source = source
        self._fixed = {"bos_token": bos_token, "eos_token": eos_token}
        self._clock = clock
        self._probe_seconds = render_seconds
        self._sandbox: Sandbox | None = None
        self.problem: str | None = None
        """Why the template does not compile, or None."""
        try:
            self._sandbox = Sandbox(source, clock=clock, render_seconds=render_seconds)
        except TemplateFault as fault:
            self.problem = str(fault)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        arguments: Mapping[str, JsonValue] | None = None,
    ) -> str:
        """The prompt, with one generation prompt at its end.

        A non-empty last assistant message is text that the answer continues: it stands at the very end, after the
        generation prompt. An empty one is dropped. Raises Refusal: `template_unsupported` when the template fails or
        refuses this conversation, `tools_unsupported` when it has no place for tools, `invalid_parameter` for
        arguments of an earlier call that are no JSON object.
        """
        if tools and not self.supports_tools:
            raise Refusal(
                Code.TOOLS_UNSUPPORTED,
                "This model's chat template has no syntax for tools. Send the request without tools, or choose a model"
                " that can call them.",
                param="tools",
            )
        spoken, prefill = normalise.split_prefill(messages)
        if tools and not self.traits.declares_tools:
            spoken = normalise.with_tool_list(spoken, tools)
        conversation = normalise.turns(spoken, self.traits)
        try:
            prompt = self.render_turns(conversation, tools=normalise.tool_entries(tools), arguments=arguments or {})
        except TemplateSlow as fault:
            raise (_too_large(messages) if _is_large(messages) else _unsupported(str(fault))) from fault
        except TemplateFault as fault:
            raise _unsupported(str(fault)) from fault
        return prompt + self._continued(prompt, prefill)

    @cached_property
    def reasoning_marks(self) -> ReasoningMarks | None:
        """What this template puts around thinking, if it shows any."""
        return derive_marks(self.render_probe, self.traits, self.source)

    def _continued(self, prompt: str, prefill: str) -> str:
        """The beginning of an answer; thinking that the prompt opened is over when it comes."""
        marks = self.reasoning_marks if prefill else None
        if marks is None or not is_opened(prompt, marks):
            return prefill
        return f"\n{marks.close}\n\n{prefill}"

    @cached_property
    def traits(self) -> Traits:
        """What this template keeps of a conversation, probed once."""
        return probe(self.render_probe)

    @property
    def supports_tools(self) -> bool:
        """True when calls in a conversation reach the prompt, so that their syntax is known."""
        return self.traits.supports_tools

    def render_probe(
        self, turns: Sequence[Turn], tools: Sequence[JsonValue], arguments: Mapping[str, JsonValue]
    ) -> str:
        """`render_turns` as the probes call it: `add_generation_prompt` is one of the arguments.

        All probes together get no longer than one render may take: a slow template is no reason for a slow start.
        """
        if self._probe_seconds < 0:
            raise TemplateFault("the template is too slow to be examined")
        begun = time.thread_time()
        try:
            prompted = arguments.get("add_generation_prompt", True) is True
            return self.render_turns(turns, tools=tools, arguments=arguments, generation_prompt=prompted)
        finally:
            self._probe_seconds -= time.thread_time() - begun

    def render_turns(
        self,
        conversation: Sequence[Turn],
        *,
        tools: Sequence[JsonValue] = (),
        arguments: Mapping[str, JsonValue] | None = None,
        generation_prompt: bool = True,
    ) -> str:
        """Render exactly these turns, as the template sees them. Raises TemplateFault."""
        if self._sandbox is None:
            raise TemplateFault(self.problem or "the template does not compile")
        if not conversation:
            raise TemplateFault("there is no message to render")
        variables = {name: value for name, value in (arguments or {}).items() if name not in RESERVED_ARGUMENTS}
        variables |= self._fixed
        # Templates write into their own lists (`messages.pop(0)`), so each render gets a copy.
        variables |= {"messages": copy.deepcopy(list(conversation)), "add_generation_prompt": generation_prompt}
        variables["date_string"] = self._clock().strftime("%d %b %Y")
        if tools:
            variables["tools"] = copy.deepcopy(list(tools))
        return self._sandbox.render(variables)


def _is_large(conversation: Sequence[Message]) -> bool:
    """Whether the time that rendering takes may be the conversation's doing."""
    return len(conversation) > _LARGE_TURNS or sum(len(message.content) for message in conversation) > _LARGE_CHARACTERS


def _too_large(conversation: Sequence[Message]) -> Refusal:
    return Refusal(
        Code.TEMPLATE_UNSUPPORTED,
        f"The model's chat template takes too long to write a conversation of {len(conversation):,} messages. Shorten"
        " the conversation.",
        param="messages",
    )


def _unsupported(reason: str) -> Refusal:
    return Refusal(
        Code.TEMPLATE_UNSUPPORTED,
        f"The model's chat template does not take this conversation: {reason.rstrip('.')}. Change the order or roles of"
        " the messages, or start the server with another --chat-template.",
    )
