"""Reads a GGUF header from a hostile file in bounded memory and time: structure only, no meaning.

Everything is read through a small window, never mapped: a file that another program cuts short while we read it is an
error here, where a mapping would kill the process. Arrays are stepped over; what is wanted is read afterwards by key.
The rules are those of the GGUF specification (versions 2 and 3) and of llama.cpp's own reader, which is stricter.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from pocketserver.models.gguf_tables import TENSOR_TYPES, VALUE_FORMATS, TensorType, ValueType

MAX_KEYS = 16_384
MAX_KEY_BYTES = 1_024
MAX_TENSORS = 65_536
MAX_TENSOR_NAME_BYTES = 63  # ggml keeps names in 64 bytes with a closing zero
MAX_DIMENSIONS = 4
MAX_STRINGS_IN_ARRAYS = 3_000_000  # the largest vocabularies have under 300,000 tokens and a million merges
MAX_HEADER_BYTES = 256 << 20  # the largest real headers have about 20 MB
MAX_TEXT_BYTES = 4 << 20
MAX_ARRAY_READ = 4_096
MAX_ALIGNMENT = 1 << 20
DEFAULT_ALIGNMENT = 32

_WINDOW_BYTES = 256 << 10
_SMALLEST_KEY_BYTES = 8 + 4 + 1  # length, type, one byte of value
_SMALLEST_TENSOR_BYTES = 8 + 4 + 4 + 8  # length, number of dimensions, type, offset
_INT64_MAX = (1 << 63) - 1
_LENGTH = struct.Struct("<Q")


class HeaderFault(Exception):  # noqa: N818 - a finding about a file, which the caller turns into its own error
    """What is wrong with a header, as the end of a sentence that begins with the file's name."""


class CutShort(HeaderFault):
    """The file ends before its header does. `needed_bytes` is the least size that the header asks for."""

    def __init__(self, needed_bytes: int, size_bytes: int) -> None:
        super().__init__(f"is cut short: {size_bytes:,} bytes, at least {needed_bytes:,} expected")
        self.needed_bytes = needed_bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a metadata value lies. `count` is an array's number of elements, 1 for a scalar."""

    type: ValueType
    position: int
    count: int = 1
    is_array: bool = False


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor as the header announces it. `offset` counts from the start of the data section."""

    name: str
    type: TensorType
    elements: int
    size_bytes: int
    offset: int


class Header:
    """A checked header: its keys, and the sums over its tensors."""

    def __init__(self, cursor: "Cursor") -> None:
        self._cursor = cursor
        self.version, tensor_count, key_count = _read_counts(cursor)
        self.entries = _read_entries(cursor, key_count)
        self.alignment = self._read_alignment()
        self.parameter_count = 0
        self.bytes_by_type: dict[str, int] = {}
        self.tensor_count = tensor_count
        self._sum_tensors(tensor_count)

    @property
    def tensor_bytes(self) -> int:
        return sum(self.bytes_by_type.values())

    def text(self, key: str) -> str | None:
        """A string value; None when the key is absent. Bytes that are no UTF-8 become replacement characters."""
        entry = self._entry(key, is_array=False)
        if entry is None:
            return None
        if entry.type is not ValueType.STRING:
            raise HeaderFault(f"has a {entry.type.name.lower()} where {key} must be a string")
        self._cursor.position = entry.position
        return self._cursor.string(MAX_TEXT_BYTES, key).decode(errors="replace")

    def integer(self, key: str) -> int | None:
        """A whole number that is not negative (booleans are 0 and 1); None when the key is absent."""
        entry = self._entry(key, is_array=False)
        return None if entry is None else self._integers(key, entry)[0]

    def integers(self, key: str) -> tuple[int, ...] | None:
        """A number or an array of them, as llama.cpp allows for values that may differ by layer."""
        entry = self.entries.get(key)
        return None if entry is None else self._integers(key, entry)

    def count(self, key: str) -> int | None:
        """How many elements an array has; None when the key is absent or no array."""
        entry = self.entries.get(key)
        return entry.count if entry is not None and entry.is_array else None

    def at(self, entry: Entry) -> "Cursor":
        """The file, placed where a value begins, for readers that take values as they are."""
        self._cursor.position = entry.position
        return self._cursor

    def _entry(self, key: str, *, is_array: bool) -> Entry | None:
        entry = self.entries.get(key)
        if entry is not None and entry.is_array is not is_array:
            raise HeaderFault(f"has an array where {key} must be a single value")
        return entry

    def _integers(self, key: str, entry: Entry) -> tuple[int, ...]:
        if entry.type in {ValueType.STRING, ValueType.FLOAT32, ValueType.FLOAT64}:
            raise HeaderFault(f"has a {entry.type.name.lower()} where {key} must be a whole number")
        if not 1 <= entry.count <= MAX_ARRAY_READ:
            raise HeaderFault(f"has {entry.count:,} values for {key}, allowed are 1 to {MAX_ARRAY_READ:,}")
        self._cursor.position = entry.position
        values = tuple(int(self._cursor.number(entry.type)) for _ in range(entry.count))
        if min(values) < 0:
            raise HeaderFault(f"has the negative value {min(values)} for {key}")
        return values

    def _read_alignment(self) -> int:
        after_keys = self._cursor.position
        alignment = self.integer("general.alignment")
        self._cursor.position = after_keys
        alignment = DEFAULT_ALIGNMENT if alignment is None else alignment
        if not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise HeaderFault(
                f"has a general.alignment of {alignment}, which is no power of two up to {MAX_ALIGNMENT:,}"
            )
        return alignment

    def _sum_tensors(self, tensor_count: int) -> None:
        """Check the tensors, and that the file holds their data. llama.cpp wants them in order and without gaps."""
        end, expected = 0, 0
        for tensor in _read_tensors(self._cursor, tensor_count):
            if tensor.offset != expected:
                raise HeaderFault(f"has tensor {shown(tensor.name)} at offset {tensor.offset:,}, {expected:,} expected")
            end = tensor.offset + tensor.size_bytes
            expected = _padded(end, self.alignment)
            self.parameter_count += tensor.elements
            kind = tensor.type.name
            self.bytes_by_type[kind] = self.bytes_by_type.get(kind, 0) + tensor.size_bytes
        needed = _padded(self._cursor.position, self.alignment) + end
        if tensor_count and needed > self._cursor.size:
            raise HeaderFault(f"is cut short: {self._cursor.size:,} bytes, {needed:,} expected")


class Cursor:
    """A position in a file that cannot leave it. `size` is the file's size when it was opened."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._window = b""
        self._window_start = 0
        self.size = size
        self.position = 0

    def take(self, count: int) -> bytes:
        self.need(count)
        offset = self.position - self._window_start
        if not 0 <= offset <= len(self._window) - count:
            self._fill(count)
            offset = 0
        self.position += count
        return self._window[offset : offset + count]

    def need(self, count: int) -> None:
        """Raise `CutShort` unless the file has `count` more bytes; another fault when no header is so long."""
        if self.position + count > self.size:
            raise CutShort(self.position + count, self.size)
        if self.position + count > MAX_HEADER_BYTES:
            raise HeaderFault(f"has a header of more than {MAX_HEADER_BYTES >> 20} MiB")

    def skip(self, count: int) -> None:
        self.need(count)
        self.position += count

    def number(self, kind: ValueType) -> int | float:
        layout = VALUE_FORMATS[kind]
        value: int | float = struct.unpack(layout, self.take(struct.calcsize(layout)))[0]
        return value

    def uint32(self) -> int:
        return int(self.number(ValueType.UINT32))

    def uint64(self) -> int:
        return int(self.number(ValueType.UINT64))

    def string(self, limit_bytes: int, what: str) -> bytes:
        """A length and that many bytes. `what` names the string in the error about one that is too long."""
        length = self.uint64()
        if length > limit_bytes:
            raise HeaderFault(f"has {what} of {length:,} bytes, at most {limit_bytes:,} are allowed")
        return self.take(length)

    def skip_strings(self, count: int) -> None:
        """Step over strings without making them: vocabularies have hundreds of thousands."""
        while count:
            self.need(8)
            self._fill(8)
            count -= self._skip_in_window(count)
            self.need(0)

    def _skip_in_window(self, count: int) -> int:
        window, last, offset = self._window, len(self._window) - 8, 0
        done = 0
        while done < count and offset <= last:
            offset += 8 + _LENGTH.unpack_from(window, offset)[0]
            done += 1
        self.position += offset
        return done

    def _fill(self, least: int) -> None:
        """Make the window begin at the position and hold at least so many bytes."""
        self._file.seek(self.position)
        self._window = self._file.read(max(least, _WINDOW_BYTES))
        self._window_start = self.position
        if len(self._window) < least:  # cut short by somebody else while we read
            raise CutShort(self.position + least, self.position + len(self._window))


def shown(text: str) -> str:
    """Foreign text for an error line: quoted, control characters escaped, not too long."""
    return ascii(text if len(text) <= 64 else text[:64] + "…")


def _read_counts(cursor: Cursor) -> tuple[int, int, int]:
    """Version, number of tensors, number of keys: the fixed 24 bytes at the start."""
    version = _read_version(cursor)
    tensor_count, key_count = cursor.uint64(), cursor.uint64()
    _check_count(cursor, key_count, MAX_KEYS, _SMALLEST_KEY_BYTES, "metadata keys")
    _check_count(cursor, tensor_count, MAX_TENSORS, _SMALLEST_TENSOR_BYTES, "tensors")
    return version, tensor_count, key_count


def _read_version(cursor: Cursor) -> int:
    if cursor.size == 0:
        raise HeaderFault("is empty: 0 bytes, at least 24 expected")
    magic = cursor.take(min(4, cursor.size))
    if magic != b"GGUF"[: len(magic)]:
        raise HeaderFault("is not a GGUF file")  # without its first bytes: who asks may not be who may read it
    if cursor.size < 24:
        raise CutShort(24, cursor.size)
    version = cursor.uint32()
    if version & 0xFFFF == 0:
        raise HeaderFault("is a big-endian GGUF file, which this machine does not read")
    if version not in {2, 3}:
        raise HeaderFault(f"has GGUF version {version}; versions 2 and 3 are read")
    return version


def _check_count(cursor: Cursor, count: int, limit: int, smallest_bytes: int, what: str) -> None:
    if count > limit:
        raise HeaderFault(f"announces {count:,} {what}, at most {limit:,} are allowed")
    cursor.need(count * smallest_bytes)


def _read_entries(cursor: Cursor, count: int) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    strings_left = MAX_STRINGS_IN_ARRAYS
    for _ in range(count):
        key = cursor.string(MAX_KEY_BYTES, "a metadata key").decode(errors="replace")
        if not key:
            raise HeaderFault("has a metadata key without a name")
        if key in entries:
            raise HeaderFault(f"has the metadata key {shown(key)} twice")
        entry = entries[key] = _read_entry(cursor, key, strings_left)
        if entry.is_array and entry.type is ValueType.STRING:
            strings_left -= entry.count
    return entries


def _read_entry(cursor: Cursor, key: str, strings_left: int) -> Entry:
    kind = _value_type(cursor, key)
    if kind is ValueType.ARRAY:
        return _read_array(cursor, key, strings_left)
    position = cursor.position
    if kind is ValueType.STRING:
        cursor.skip(cursor.uint64())
    elif cursor.number(kind) not in {0, 1} and kind is ValueType.BOOL:
        raise HeaderFault(f"has a value for {shown(key)} that is neither true nor false")
    return Entry(kind, position)


def _read_array(cursor: Cursor, key: str, strings_left: int) -> Entry:
    kind, count = _value_type(cursor, key), cursor.uint64()
    position = cursor.position
    if kind is ValueType.ARRAY:
        raise HeaderFault(f"has an array of arrays in {shown(key)}, which GGUF readers do not take")
    if kind is not ValueType.STRING:
        cursor.skip(count * struct.calcsize(VALUE_FORMATS[kind]))
        return Entry(kind, position, count, is_array=True)
    if count > strings_left:
        raise HeaderFault(f"has {count:,} strings in {shown(key)}, at most {strings_left:,} are allowed")
    cursor.need(count * 8)
    cursor.skip_strings(count)
    return Entry(kind, position, count, is_array=True)


def _value_type(cursor: Cursor, key: str) -> ValueType:
    number = cursor.uint32()
    try:
        return ValueType(number)
    except ValueError as error:
        raise HeaderFault(f"has a value of the unknown type {number} in {shown(key)}") from error


def _read_tensors(cursor: Cursor, count: int) -> Iterator[Tensor]:
    names: set[bytes] = set()
    for _ in range(count):
        raw_name = cursor.string(MAX_TENSOR_NAME_BYTES, "a tensor name")
        name = raw_name.decode(errors="replace")
        if not raw_name:
            raise HeaderFault("has a tensor without a name")
        if raw_name in names:
            raise HeaderFault(f"has the tensor {shown(name)} twice")
        names.add(raw_name)
        yield _read_tensor(cursor, name)


def _read_tensor(cursor: Cursor, name: str) -> Tensor:
    dimension_count = cursor.uint32()
    if not 1 <= dimension_count <= MAX_DIMENSIONS:
        raise HeaderFault(
            f"has {dimension_count} dimensions in tensor {shown(name)}, allowed are 1 to {MAX_DIMENSIONS}"
        )
    dimensions = [cursor.uint64() for _ in range(dimension_count)]
    type_number, offset = cursor.uint32(), cursor.uint64()
    kind = TENSOR_TYPES.get(type_number)
    if kind is None:
        raise HeaderFault(f"has tensor {shown(name)} of type {type_number}, which llama.cpp does not know")
    elements = _element_count(name, dimensions)
    if dimensions[0] % kind.block_elements:
        raise HeaderFault(
            f"has {dimensions[0]:,} columns in tensor {shown(name)}, no whole number of {kind.name} blocks"
        )
    return Tensor(name, kind, elements, elements // kind.block_elements * kind.block_bytes, offset)


def _element_count(name: str, dimensions: list[int]) -> int:
    elements = 1
    for dimension in dimensions:
        elements *= dimension
        if not 0 < elements <= _INT64_MAX:
            raise HeaderFault(f"has impossible dimensions {dimensions} in tensor {shown(name)}")
    return elements


def _padded(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment
