"""From an answer's tokens to its events: as visible text, or as thinking, text and calls in the model's own format."""

import codecs
from collections.abc import Sequence
from typing import Protocol

from pocketserver.chat import Event, FinishReason, TextDelta, TokenScore
from pocketserver.engines.llama.reply import ReplyReader
from pocketserver.engines.text import TextAssembler


class Reply(Protocol):
    """Reads tokens in their order and says what became certain with each. One for each answer."""

    @property
    def stop_sequence(self) -> str | None:
        """The stop string that ended the answer; nothing fed after it shows."""
        ...

    @property
    def closing_mark(self) -> str | None:
        """The text that ends the thinking the model is in; None while it is not thinking."""
        ...

    @property
    def reasoning_tokens(self) -> int:
        """Tokens that were fed while the model was thinking."""
        ...

    def feed(self, token: int, piece: bytes, score: TokenScore | None = None) -> Sequence[Event]: ...

    def goes_on_after(self, token: int) -> bool:
        """Whether a token that ends a generation by the vocabulary ends only the thinking here."""
        ...

    def finish(self, reason: FinishReason) -> tuple[Sequence[Event], FinishReason]:
        """What was held back, when no more tokens come, and the reason to report."""
        ...


class PlainReply:
    """Visible text with stop strings; scores come out with the text that their tokens made."""

    closing_mark: str | None = None
    reasoning_tokens = 0

    def __init__(self, stop: Sequence[str]) -> None:
        self._text = TextAssembler(stop)
        self._tokens = 0
        self._fed_bytes = 0
        self._shown_bytes = 0
        self._scores: list[tuple[int, TokenScore]] = []

    @property
    def stop_sequence(self) -> str | None:
        return self._text.stop_sequence

    def feed(self, token: int, piece: bytes, score: TokenScore | None = None) -> Sequence[Event]:  # noqa: ARG002
        self._tokens += 1
        if score is not None and piece:
            self._scores.append((self._fed_bytes, score))
        self._fed_bytes += len(piece)
        return self._shown(self._text.feed(piece))

    def goes_on_after(self, token: int) -> bool:  # noqa: ARG002
        return False

    def finish(self, reason: FinishReason) -> tuple[Sequence[Event], FinishReason]:
        return self._shown(self._text.finish()), reason

    def _shown(self, text: str) -> Sequence[Event]:
        if not text:
            return ()
        self._shown_bytes += len(text.encode())
        tokens, self._tokens = self._tokens, 0
        return (TextDelta(text=text, tokens=tokens, scores=self._scores_so_far()),)

    def _scores_so_far(self) -> tuple[TokenScore, ...]:
        ready = tuple(score for start, score in self._scores if start < self._shown_bytes)
        del self._scores[: len(ready)]
        return ready


class FormatReply:
    """A reply in its model's format. Bytes become whole characters here; half of one at the end is left out."""

    def __init__(self, reader: ReplyReader) -> None:
        self._reader = reader
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def stop_sequence(self) -> str | None:
        return self._reader.stop_sequence

    @property
    def closing_mark(self) -> str | None:
        return self._reader.closing_mark if self._reader.in_reasoning else None

    @property
    def reasoning_tokens(self) -> int:
        return self._reader.reasoning_tokens

    def feed(self, token: int, piece: bytes, score: TokenScore | None = None) -> Sequence[Event]:
        return self._reader.feed(token, self._decoder.decode(piece), score=score if piece else None)

    def goes_on_after(self, token: int) -> bool:
        return self._reader.goes_on_after(token)

    def finish(self, reason: FinishReason) -> tuple[Sequence[Event], FinishReason]:
        return self._reader.finish(reason)
