"""From an answer's tokens to its events. This is the plain reader: everything the model writes is visible text."""

from collections.abc import Sequence
from typing import Protocol

from pocketserver.chat import Event, TextDelta, TokenScore
from pocketserver.engines.text import TextAssembler


class Reply(Protocol):
    """Reads tokens in their order and says what became certain with each. One for each answer."""

    @property
    def stop_sequence(self) -> str | None:
        """The stop string that ended the answer; nothing fed after it shows."""
        ...

    def feed(self, token: int, piece: bytes, score: TokenScore | None = None) -> Sequence[Event]: ...

    def finish(self) -> Sequence[Event]:
        """What was held back, when no more tokens come."""
        ...


class PlainReply:
    """Visible text with stop strings; scores come out with the text that their tokens made."""

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

    def finish(self) -> Sequence[Event]:
        return self._shown(self._text.finish())

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
