"""A model's tokens without its weights: prompts are counted as the llama engine counts them, texts cut as it reads."""

import threading
from collections.abc import Sequence
from pathlib import Path

from pocketserver.chat import GenerationRequest, PromptToken
from pocketserver.engines.llama import native
from pocketserver.engines.llama.dialogue import Dialogue
from pocketserver.engines.llama.examination import FALLBACK_TEMPLATE
from pocketserver.engines.llama.model import VocabularyAlone


class ModelTokenizer:
    """One model file's vocabulary and chat template, read in some 0.3 s. Safe from several threads.

    `context_size` is the longest prompt that is worth counting; `state_folder` remembers what was found out about the
    template. Raises Refusal(INTERNAL_ERROR) where llama.cpp does not take the file.
    """

    is_quick = False

    def __init__(self, path: Path, *, context_size: int, state_folder: Path | None = None) -> None:
        native.quiet()
        alone = VocabularyAlone(str(path))  # kept until the process ends
        self._vocabulary = alone.vocabulary
        dialogue = Dialogue(alone.chat_template or FALLBACK_TEMPLATE, alone.vocabulary, state_folder)
        self.supports_tools = dialogue.supports_tools
        self.supports_thinking = dialogue.supports_thinking
        self.can_insert = alone.vocabulary.can_insert
        self._prompter = dialogue.prompter(context_size)
        self._rendering = threading.Lock()  # a template keeps its clock while it renders

    def prompt_tokens(self, request: GenerationRequest) -> int:
        """By the model's own chat template. Raises Refusal for what it cannot express, and for a hopeless length."""
        with self._rendering:
            return len(self._prompter.prompt(request).tokens)

    def read(self, request: GenerationRequest) -> Sequence[PromptToken]:
        """The prompt's tokens, as `prompt_tokens` counts them."""
        with self._rendering:
            tokens = self._prompter.prompt(request).tokens
        return [PromptToken(id=token, text=self._vocabulary.text(token)) for token in tokens]

    def split(self, text: str) -> Sequence[bytes]:
        """The tokens of an answer. Vocabularies that begin every text with a space get that space taken off again."""
        data = text.encode("utf-8", errors="replace")
        spelt = [self._vocabulary.piece(token) for token in self._vocabulary.split(text, special=False)]
        if spelt and b"".join(spelt) == b" " + data:
            spelt[0] = spelt[0][1:]
        if b"".join(spelt) != data:  # vocabularies that fold letters: the number of tokens is true, not where they end
            return [data, *[b""] * (len(spelt) - 1)] if data else []
        return spelt
