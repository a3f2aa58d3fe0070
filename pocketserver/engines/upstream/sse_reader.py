"""Server-sent events as other servers write them: every line end, comments, pieces of any size, bounded lines.

Source: WHATWG HTML, "Server-sent events", section "Parsing an event stream".
"""

MAX_EVENT_BYTES = 4 * 1024 * 1024


class TooLongError(Exception):
    """A line or event that nobody would send in earnest."""


class SseReader:
    """Feed it bytes, get the data of whole events."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._at_start = True
        self._after_carriage_return = False

    def feed(self, data: bytes) -> list[bytes]:
        """The data of all events that are complete now. Raises TooLongError."""
        self._rest += self._without_half_line_end(data).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in self._rest:
            self._check(len(self._rest))
            return []
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        self._check(len(rest))
        return [event for line in lines if (event := self._take(line)) is not None]

    def finish(self) -> list[bytes]:
        """What a server left without its empty line at the end. More lenient than the standard, as engines are."""
        last = self._take(bytes(self._rest)) if self._rest else None
        self._rest.clear()
        return [event for event in (last, self._end_event()) if event is not None]

    def _without_half_line_end(self, data: bytes) -> bytes:
        """CR and LF may come in two pieces: they are one line end."""
        if self._after_carriage_return and data.startswith(b"\n"):
            data = data[1:]
        if data:
            self._after_carriage_return = data.endswith(b"\r")
        return data

    def _take(self, line: bytes) -> bytes | None:
        if self._at_start:
            line, self._at_start = line.removeprefix(b"\xef\xbb\xbf"), False
        if not line:
            return self._end_event()
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
            self._data_bytes += len(value)
            self._check(self._data_bytes)
        return None

    def _end_event(self) -> bytes | None:
        if not self._data:
            return None
        event = b"\n".join(self._data)
        self._data, self._data_bytes = [], 0
        return event

    def _check(self, size: int) -> None:
        if size > MAX_EVENT_BYTES:
            raise TooLongError
