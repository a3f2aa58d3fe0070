"""A raw prompt as the beginning of its own answer, with the score of each of its tokens where they are asked for."""

from collections.abc import Callable, Sequence

import msgspec

from pocketserver.chat import GenerationRequest, TextDelta, TokenScore
from pocketserver.engines.llama.decoder import DecodeAbortedError, Decoder
from pocketserver.engines.llama.model import Vocabulary
from pocketserver.engines.llama.sampler import log_probability, most_probable

_SCORED_AT_ONCE = 64
"""Tokens whose logits are in memory at one time: a megabyte each with a large vocabulary."""


class Echo:
    """What one answer begins with. Holds nothing but the prompt."""

    def __init__(self, request: GenerationRequest, tokens: Sequence[int], vocabulary: Vocabulary) -> None:
        self._request = request
        self._tokens = tokens
        self._vocabulary = vocabulary
        adds = vocabulary.adds_bos and not request.prompt_tokens
        written = (request.prompt or "").startswith(vocabulary.text(vocabulary.bos))
        self._unseen = 1 if adds and not written else 0
        """Tokens at the beginning that the client did not send: the BOS that this model wants."""

    def plain(self) -> Sequence[TextDelta]:
        """The prompt's text; nothing for an empty one."""
        text = self._text()
        return (TextDelta(text=text, tokens=0),) if text else ()

    def scored(
        self, decoder: Decoder, progress: Callable[[int], None], cancelled: Callable[[], bool]
    ) -> Sequence[TextDelta]:
        """The same with the score of each token. Reads the whole prompt anew: the context holds it afterwards."""
        decoder.clear()
        scores = [self._named(self._tokens[0], is_first=True)]
        size = min(decoder.most_unmarked, _SCORED_AT_ONCE)
        for start in range(0, len(self._tokens), size):
            if cancelled():
                raise DecodeAbortedError
            batch = self._tokens[start : start + size]
            decoder.decode(batch, all_logits=True)
            following = self._tokens[start + 1 : start + 1 + len(batch)]
            scores += [self._score(decoder, row, token) for row, token in enumerate(following)]
            progress(len(decoder.tokens))
        text, seen = self._text(), scores[self._unseen :]
        return (TextDelta(text=text, tokens=0, scores=tuple(self._trimmed(seen, text))),) if text else ()

    def _text(self) -> str:
        if not self._request.prompt_tokens:
            return self._request.prompt or ""
        return b"".join(map(self._spelt, self._tokens)).decode("utf-8", errors="replace")

    def _score(self, decoder: Decoder, row: int, token: int) -> TokenScore:
        logits = decoder.logits(row)
        best = most_probable(logits, min(self._request.top_logprobs or 0, len(logits)))
        own, *others = log_probability(logits, [token, *best])
        top = tuple(self._named(other, score) for other, score in zip(best, others, strict=True))
        return self._named(token, own, top)

    def _named(
        self, token: int, logprob: float = 0.0, top: tuple[TokenScore, ...] = (), *, is_first: bool = False
    ) -> TokenScore:
        data = self._spelt(token)
        return TokenScore(
            token=data.decode("utf-8", errors="replace"), logprob=logprob, bytes=data, top=top, is_first=is_first
        )

    def _spelt(self, token: int) -> bytes:
        return self._vocabulary.piece(token) or self._vocabulary.text(token).encode()

    def _trimmed(self, scores: Sequence[TokenScore], text: str) -> Sequence[TokenScore]:
        """The scores without the space that some tokenizers put before every text."""
        if not scores or b"".join(score.bytes for score in scores) != b" " + text.encode(errors="replace"):
            return scores
        data = scores[0].bytes[1:]
        first = msgspec.structs.replace(scores[0], token=data.decode("utf-8", errors="replace"), bytes=data)
        return [first, *scores[1:]]
