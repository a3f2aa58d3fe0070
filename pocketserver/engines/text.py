"""From the bytes of tokens to the text of an answer: whole characters only, and nothing of a stop string."""

import codecs
from collections.abc import Sequence

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class TextAssembler:
    """Turns bytes into text that may be shown.

    Bytes wait until a character is complete, so a character that is spread over several tokens never shows as pieces;
    bytes that can never become one are replaced by U+FFFD. Text waits while it may still become a stop string; what
    cannot any more comes out with the next `feed`. The stop string that is complete first ends the text, and where two
    are complete at the same character, the longer one. How the bytes are cut into pieces makes no difference.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._stop = tuple(text for text in stop if text)
        self._decoder = _Utf8Decoder(errors="replace")
        self._held = ""
        self.stop_sequence: str | None = None
        """The stop string that ended the text, or None."""

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete; nothing comes out any more."""
        return self.stop_sequence is not None

    @property
    def holding(self) -> bool:
        """Whether something fed is not out yet: bytes of a character or text that may become a stop string."""
        return bool(self._held) or bool(self._decoder.getstate()[0])

    def feed(self, data: bytes) -> str:
        """The text that is certain now; often empty. After a stop string always empty."""
        return self._take(self._decoder.decode(data))

    def finish(self) -> str:
        """The rest, when no more bytes come: what was held back and is no stop string after all.

        The first bytes of a character whose others never came (the token limit fell into it) are left out.
        """
        self._decoder.reset()
        rest, self._held = self._held, ""
        return rest

    def _take(self, text: str) -> str:
        if not self._stop:
            return text
        if self.stopped:
            return ""
        self._held += text
        if self._find_stop():
            return self._release(len(self._held))
        return self._release(len(self._held) - self._doubtful())

    def _find_stop(self) -> bool:
        """Cut the held text at the stop string that is complete first."""
        found = [(self._held.find(stop), stop) for stop in self._stop]
        ends = [(start + len(stop), start, stop) for start, stop in found if start >= 0]
        if not ends:
            return False
        _, start, self.stop_sequence = min(ends)
        self._held = self._held[:start]
        return True

    def _doubtful(self) -> int:
        """How many characters at the end may still become a stop string."""
        return max((_overlap(self._held, stop) for stop in self._stop), default=0)

    def _release(self, count: int) -> str:
        text, self._held = self._held[:count], self._held[count:]
        return text


def _overlap(text: str, stop: str) -> int:
    """The length of the longest proper beginning of `stop` with which `text` ends."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
