"""Which tokens of a prompt are read through BLAS, and in which batches.

BLAS gives other last digits than llama.cpp's own kernels do. So that an answer does not depend on what happened to be
cached, a token's way through the model must follow from the prompt alone: long stretches between two answers are read
through BLAS; answers are read the way they were written, and so are short stretches, where BLAS gains nothing. A token
that is read through BLAS bears a mark in its number: what a context or a cache holds of it then counts as the same only
where it was read the same way.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

LEAST_STRETCH = 96
"""Tokens of a stretch that BLAS reads. With some 60 both ways take the same time, and 32 is the least it takes."""

LEAST_BATCH = 32
"""Tokens of a batch that llama.cpp gives to BLAS; what is not to be read through it is read in smaller ones."""

_MARK = 1 << 30
_TOKEN = _MARK - 1


def token_of(marked: int) -> int:
    """The vocabulary's number of a token, whichever way it is read."""
    return marked & _TOKEN


def is_marked(token: int) -> bool:
    return token >= _MARK


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingPlan:
    """How one model's prompts are read. `opening` are the tokens between a question and its answer.

    Without an opening, or with `blas` off, nothing is marked in a conversation.
    """

    blas: bool
    opening: Sequence[int]
    end_tokens: Collection[int]

    def marked(self, prompt: Sequence[int], *, raw: bool = False) -> list[int]:
        """The prompt with its marks. A raw prompt is one stretch, whatever it holds."""
        tokens = list(prompt)
        if not self.blas or not (raw or self.opening):
            return tokens
        for start, end in [(0, len(tokens))] if raw else self._between_answers(tokens):
            if end - start >= LEAST_STRETCH:
                tokens[start:end] = [token | _MARK for token in tokens[start:end]]
        return tokens

    def _between_answers(self, tokens: Sequence[int]) -> Iterator[tuple[int, int]]:
        """From the end of an answer to the beginning of the next one, its opening included."""
        start = 0
        while start < len(tokens):
            end = self._opened(tokens, start)
            yield start, end
            start = next((at for at in range(end, len(tokens)) if tokens[at] in self.end_tokens), len(tokens))

    def _opened(self, tokens: Sequence[int], start: int) -> int:
        opening, length = list(self.opening), len(self.opening)
        for at in range(start, len(tokens) - length + 1):
            if tokens[at] == opening[0] and tokens[at : at + length] == opening:
                return at + length
        return len(tokens)


def batches(tokens: Sequence[int], most: int, *, blas: bool) -> Iterator[Sequence[int]]:
    """Batches of up to `most` tokens in which all are read the same way; with `blas` each as large as that takes."""
    start = 0
    while start < len(tokens):
        marked = is_marked(tokens[start])
        end = next((at for at in range(start, len(tokens)) if is_marked(tokens[at]) is not marked), len(tokens))
        yield from _even(tokens[start:end], most) if marked or not blas else _pieces(tokens[start:end], LEAST_BATCH - 1)
        start = end


def whole_batch(kept: int, prompt: Sequence[int]) -> int:
    """How much of a known beginning can be kept so that enough is left for a batch of BLAS's."""
    if kept >= len(prompt) or not is_marked(prompt[kept]):
        return kept
    end = next((at for at in range(kept, len(prompt)) if not is_marked(prompt[at])), len(prompt))
    return max(0, min(kept, end - LEAST_BATCH))


def _even(tokens: Sequence[int], most: int) -> Iterator[Sequence[int]]:
    """As few batches as possible, of nearly the same length."""
    count = -(-len(tokens) // most)
    bounds = [len(tokens) * number // count for number in range(count + 1)]
    return (tokens[start:end] for start, end in pairwise(bounds))


def _pieces(tokens: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (tokens[start : start + size] for start in range(0, len(tokens), size))
