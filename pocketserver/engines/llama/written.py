"""What a template makes of an assistant's turn: the text that the model itself would have written."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pocketserver.chat import JsonValue
from pocketserver.engines.llama import traits as probing
from pocketserver.engines.llama.atoms import Atoms, Gap, common_prefix
from pocketserver.engines.llama.sandbox import TemplateFault
from pocketserver.engines.llama.traits import NO_PROMPT, TOOLS, CallIds, Render, Traits, Turn

_WORD = re.compile(r"[A-Za-z_]{4,}")


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: Mapping[str, JsonValue]


class Writing:
    """Renders calls and plain answers in one frame, and cuts out what the model writes."""

    def __init__(self, render: Render, traits: Traits, atoms: Atoms, end_tokens: Collection[str]) -> None:
        self._render = render
        self.traits = traits
        self.atoms = atoms
        self._ends = [token for token in end_tokens if token]

    def calls(self, calls: Sequence[Call], *, raw_ids: bool = False) -> str:
        """These calls as one turn writes them, without the end of the turn. Ids become `Gap.ID` unless wanted raw."""
        written = [probing.call(self.traits, call.name, at, call.arguments) for at, call in enumerate(calls)]
        results = [probing.result(self.traits, call.name, at) for at, call in enumerate(calls)]
        calling = probing.assistant("", tool_calls=written)
        prompt = self._framed([calling, *results, probing.assistant("zqdone")])
        begin = max(len(common_prefix(self.atoms, prompt, other)) for other in (self._plain, self._asking))
        text = self._without_results(calling, prompt, begin)
        if raw_ids or self.traits.call_ids is CallIds.FUNCTION:
            return text
        return re.sub("|".join(re.escape(call["id"]) for call in written), Gap.ID, text)

    @cached_property
    def _plain(self) -> str:
        return self._framed([probing.assistant("zqplain")])

    @cached_property
    def _asking(self) -> str:
        """The prompt of the first turn: what the generation prompt writes, the model does not."""
        return self._render([probing.system(), probing.user()], TOOLS, {})

    def _without_results(self, calling: Turn, prompt: str, begin: int) -> str:
        """The text of the calls, cut at the end of the turn, and before what introduces a result."""
        text = self._cut(prompt[begin:])
        try:
            alone = self._render([probing.system(), probing.user(), calling], TOOLS, NO_PROMPT)
        except TemplateFault:
            return text
        shared = common_prefix(self.atoms, prompt, alone)[begin:]
        words = [word for word in _words(calling) if word in text]
        return shared if len(shared) < len(text) and all(word in shared for word in words) else text

    @cached_property
    def turn_end(self) -> str:
        """What stands after a plain answer whoever speaks next."""
        return common_prefix(self.atoms, self._after_plain([]), self._after_plain([probing.user("zqlast")]))

    def around_plain(self) -> tuple[str, str]:
        """What the model writes before and after the text of a plain answer, the end of the turn included."""
        prompt = self._render([probing.user(), probing.assistant("zqplain")], (), NO_PROMPT)
        asking = self._render([probing.user()], (), {})
        begin = len(common_prefix(self.atoms, prompt, asking))
        before, _, after = prompt[begin:].partition("zqplain")
        return before, after

    def generation_prompt(self) -> str:
        """What the template adds to let the assistant speak."""
        asking = self._render([probing.user()], (), {})
        return asking[len(common_prefix(self.atoms, asking, self._render([probing.user()], (), NO_PROMPT))) :]

    def _after_plain(self, rest: Sequence[Turn]) -> str:
        prompt = self._render([probing.user(), probing.assistant("zqplain"), *rest], (), NO_PROMPT)
        return prompt[prompt.rfind("zqplain") + len("zqplain") :]

    def _framed(self, turns: Sequence[Turn]) -> str:
        return self._render([probing.system(), probing.user(), *turns, probing.user("zqlast")], TOOLS, {})

    def _cut(self, text: str) -> str:
        """Up to the first mark that ends a generation, and never into the first result."""
        ends = [text.find(mark) for mark in (*self._ends, "zqresult") if mark in text]
        if not ends:
            raise TemplateFault("the results of calls do not reach the prompt")
        return text[: min(ends)]


def _words(calling: Turn) -> list[str]:
    """The words of our own that a turn with calls brings along."""
    calls = calling["tool_calls"]
    return [word for call in calls for word in (call["id"], call["function"]["name"], *_WORD.findall(str(call)))]
