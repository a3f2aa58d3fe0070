"""Looks at a model without its weights: what template and vocabulary offer, and how many tokens a request takes."""

from pathlib import Path

from pocketserver.chat import Explanation, GenerationRequest
from pocketserver.engines.llama.dialogue import Dialogue
from pocketserver.engines.llama.frames import Capable, Examine, Load
from pocketserver.engines.llama.model import VocabularyAlone

FALLBACK_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML, for models whose file holds no chat template."""


class Examination:
    """One model, examined once. Raises Refusal where llama.cpp does not take the file."""

    def __init__(self, wanted: Examine) -> None:
        alone = VocabularyAlone(wanted.path)  # kept until the process ends
        source = wanted.template or alone.chat_template
        self._has_template = source is not None
        self._vocabulary = alone.vocabulary
        self._dialogue = Dialogue(source or FALLBACK_TEMPLATE, alone.vocabulary, folder_of(wanted.state_folder))
        self._counting = self._dialogue.prompter(wanted.context_size)

    def count(self, request: GenerationRequest) -> int:
        """Prompt tokens of a request. Raises Refusal."""
        return len(self._counting.prompt(request).tokens)

    def explain(self, request: GenerationRequest) -> Explanation:
        """What the loaded model would make of a request; nothing is cached."""
        return self._dialogue.explainer(self._counting.context_size).explain(request)

    def found(self) -> Capable:
        return Capable(
            has_template=self._has_template,
            tools=self._dialogue.supports_tools,
            thinking=self._dialogue.supports_thinking,
            insert=self._vocabulary.can_insert,
            template_problem=self._counting.template.problem,
        )


def examine_before(load: Load) -> None:
    """Look at a template while nothing but the vocabulary is in memory; what is found lies in the state folder."""
    alone = VocabularyAlone(load.path)
    source = load.template or alone.chat_template or FALLBACK_TEMPLATE
    Dialogue(source, alone.vocabulary, folder_of(load.state_folder))
    alone.close()


def folder_of(state_folder: str | None) -> Path | None:
    return Path(state_folder) if state_folder else None
