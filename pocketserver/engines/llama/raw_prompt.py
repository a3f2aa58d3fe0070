"""Prompts without a template: a text, tokens, or a gap that is to be filled in."""

from collections.abc import Sequence

import llama_cpp

from pocketserver.chat import GenerationRequest
from pocketserver.engines.llama.model import Vocabulary
from pocketserver.errors import Code, Refusal


def raw_tokens(request: GenerationRequest, vocabulary: Vocabulary) -> list[int]:
    """The tokens of a raw prompt: given ones as they are, a text with its one BOS. Raises Refusal."""
    if request.prompt_tokens:
        return _known(request.prompt_tokens, vocabulary.size)
    assert request.prompt is not None, "a raw prompt"
    if request.suffix:
        return _around_gap(request, vocabulary)
    return some_tokens(vocabulary.tokenize(request.prompt), vocabulary)


def some_tokens(tokens: list[int], vocabulary: Vocabulary) -> list[int]:
    """The tokens, or the BOS where there are none. Raises INVALID_PARAMETER for a model without one."""
    if not tokens and vocabulary.bos < 0:
        raise Refusal(Code.INVALID_PARAMETER, "The prompt is empty. Send some text.", param="prompt")
    return tokens or [vocabulary.bos]


def _known(tokens: Sequence[int], size: int) -> list[int]:
    for token in tokens:
        if not 0 <= token < size:
            raise Refusal(
                Code.INVALID_PARAMETER,
                f"`prompt` holds the token {token}; this model's tokens run from 0 to {size - 1}.",
                param="prompt",
            )
    return list(tokens)


def _around_gap(request: GenerationRequest, vocabulary: Vocabulary) -> list[int]:
    """The text before and behind the gap with the model's marks, in the order that models are trained on: prefix,
    suffix, middle. Marks that stand in a file which is edited are text."""
    marks = (
        llama_cpp.llama_vocab_fim_pre(vocabulary.pointer),
        llama_cpp.llama_vocab_fim_suf(vocabulary.pointer),
        llama_cpp.llama_vocab_fim_mid(vocabulary.pointer),
    )
    if min(marks) < 0:
        raise Refusal(
            Code.INVALID_PARAMETER,
            f"{request.model} does not support insert: it has no tokens that mark a gap. Leave `suffix` out, or choose"
            " a model that is made to fill in code.",
            param="suffix",
        )
    begin = [vocabulary.bos] if vocabulary.adds_bos else []
    before = vocabulary.split(request.prompt or "", special=False)
    behind = vocabulary.split(request.suffix, special=False)
    return [*begin, marks[0], *before, marks[1], *behind, marks[2]]
