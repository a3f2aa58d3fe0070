"""What a GGUF file says of its model, read and checked without loading it: the guard in front of native code.

A model file is foreign input. Whatever llama.cpp would crash on or choke at is refused here, in one line that names the
file, the fault and the remedy.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pocketserver.errors import StartupError
from pocketserver.models.gguf_header import Cursor, CutShort, Header, HeaderFault, shown
from pocketserver.models.gguf_tables import ARCHITECTURES, FILE_TYPES, NOT_A_MODEL

MAX_BLOCKS = 512  # llama.cpp's LLAMA_MAX_LAYERS, checked there by an assertion that ends the process
MAX_PARTS = 1_024
DOWNLOAD_AGAIN = "Download the file again"
GET_ANOTHER = "Use a GGUF file of a language model"
UPDATE = "Update pocketserver, or use another model"

_PART = re.compile(r"(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_GUESSED = 1_024  # llama.cpp's flag in general.file_type for a type that it has only guessed
_RECURRENT_KEYS = ("ssm.state_size", "ssm.conv_kernel", "wkv.head_size", "shortconv.l_cache", "kda.head_dim")


class BadModelFile(StartupError):  # noqa: N818 - it says what the file is
    """A file that cannot be served. `reason` is the end of a sentence beginning with the file, `remedy` what to do."""

    def __init__(self, path: Path, reason: str, remedy: str = DOWNLOAD_AGAIN) -> None:
        super().__init__(f"{_printable(str(path))} {reason}. {remedy}.")
        self.path = path
        self.reason = reason
        self.remedy = remedy

    def without_folder(self) -> str:
        """The same line for readers on other machines, who need not know where the file lies."""
        return f"{_printable(self.path.name)} {self.reason}. {self.remedy}."


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufMetadata:
    """One model as its file describes it. Sizes and counts are those of all its parts together.

    `context_length` is in tokens, as trained. `head_counts_kv` has one number for each block (0: a block without a
    cache). `tensor_bytes` is what the weights take in memory when they are not repacked. `sliding_window` is in tokens.
    `recurrent` models keep a state that cannot be cut back to an earlier token. `is_encoder` models embed only.
    """

    path: Path
    parts: tuple[Path, ...]
    size_bytes: int
    architecture: str
    name: str | None
    context_length: int
    block_count: int
    embedding_length: int
    head_count: int
    head_counts_kv: tuple[int, ...]
    key_length: int
    value_length: int
    vocabulary_size: int
    chat_template: str | None
    bos_token_id: int | None
    eos_token_id: int | None
    add_bos: bool | None
    file_type: int | None
    quantization: str
    parameter_count: int
    tensor_count: int
    tensor_bytes: int
    sliding_window: int | None
    recurrent: bool
    is_encoder: bool

    @property
    def head_count_kv(self) -> int:
        """The largest number of key/value heads of any block."""
        return max(self.head_counts_kv)

    def kv_cache_bytes(self, context_tokens: int, bytes_per_element: float = 2.0) -> int:
        """Memory for keys and values of so many tokens; 2 bytes an element is f16.

        An upper bound for models with sliding windows: llama.cpp keeps the whole context for them by default.
        """
        elements = sum(self.head_counts_kv) * (self.key_length + self.value_length)
        return int(elements * context_tokens * bytes_per_element)


def read_metadata(path: Path) -> GgufMetadata:
    """Read and check a model: a single file, or the first part of a split one, whose other parts lie beside it.

    Blocks; takes milliseconds. Raises `BadModelFile`.
    """
    with opened_header(path) as header:
        part_count = _part_count(header)
        if part_count == 1 and not header.tensor_count:
            raise HeaderFault("holds no weights")
        metadata = _describe(path, header)
    others = part_paths(path, part_count)[1:] if part_count > 1 else ()
    for number, other in enumerate(others, start=1):
        metadata = _with_part(metadata, other, number)
    return metadata


def part_paths(first: Path, count: int) -> tuple[Path, ...]:
    """The names of a split model's parts, by llama.cpp's rule `NAME-00001-of-00003.gguf`."""
    found = _PART.fullmatch(first.name)
    if found is None or int(found["number"]) != 1 or int(found["count"]) != count:
        raise BadModelFile(
            first,
            f"is the first of {count} parts, but its name does not end in -00001-of-{count:05}.gguf",
            "Give the parts their original names",
        )
    return tuple(first.with_name(f"{found['prefix']}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1))


def split_name(file_name: str) -> tuple[str, int, int] | None:
    """Model name, part number from 1, and number of parts that a split file's name tells; None for other names."""
    found = _PART.fullmatch(file_name)
    return None if found is None else (found["prefix"], int(found["number"]), int(found["count"]))


@contextmanager
def opened_header(path: Path) -> Iterator[Header]:
    """A checked header whose values can be read inside the block; every fault in it becomes a `BadModelFile`."""
    try:
        if not path.is_file():
            reason = "is not a file" if path.exists() else "does not exist"
            raise BadModelFile(path, reason, "Check the path, or see `pocketserver models list`")
        with path.open("rb", buffering=0) as file:
            yield Header(Cursor(file, path.stat().st_size))
    except CutShort as fault:
        raise BadModelFile(path, str(fault)) from fault
    except HeaderFault as fault:
        raise BadModelFile(path, str(fault), _remedy(str(fault))) from fault
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise BadModelFile(path, f"cannot be read ({_os_reason(error)})", "Check its permissions") from error


def _describe(path: Path, header: Header) -> GgufMetadata:
    architecture = _architecture(header)
    head_counts, key_length, value_length, blocks = _attention(header, architecture)
    file_type = header.integer("general.file_type")
    return GgufMetadata(
        path=path,
        parts=(path,),
        size_bytes=path.stat().st_size,
        architecture=architecture,
        name=header.text("general.name"),
        context_length=_required(header, f"{architecture}.context_length"),
        block_count=blocks,
        embedding_length=_required(header, f"{architecture}.embedding_length"),
        head_count=max(header.integers(f"{architecture}.attention.head_count") or (0,)),
        head_counts_kv=head_counts,
        key_length=key_length,
        value_length=value_length,
        vocabulary_size=_vocabulary_size(header, architecture),
        chat_template=header.text("tokenizer.chat_template"),
        bos_token_id=header.integer("tokenizer.ggml.bos_token_id"),
        eos_token_id=header.integer("tokenizer.ggml.eos_token_id"),
        add_bos=_flag(header.integer("tokenizer.ggml.add_bos_token")),
        file_type=file_type,
        quantization=_quantization(header, file_type),
        parameter_count=header.parameter_count,
        tensor_count=header.tensor_count,
        tensor_bytes=header.tensor_bytes,
        sliding_window=header.integer(f"{architecture}.attention.sliding_window") or None,
        recurrent=any(f"{architecture}.{key}" in header.entries for key in _RECURRENT_KEYS),
        is_encoder=header.integer(f"{architecture}.attention.causal") == 0,
    )


def _architecture(header: Header) -> str:
    if "general.architecture" not in header.entries:
        raise HeaderFault("does not name its architecture (general.architecture)")
    architecture = header.text("general.architecture") or ""
    if architecture in NOT_A_MODEL:
        raise HeaderFault(NOT_A_MODEL[architecture])
    if header.text("general.type") == "adapter":
        raise HeaderFault("is a LoRA adapter, not a model")
    if architecture not in ARCHITECTURES:
        raise HeaderFault(f"is of the architecture {shown(architecture)}, which llama.cpp does not know")
    return architecture


def _attention(header: Header, architecture: str) -> tuple[tuple[int, ...], int, int, int]:
    """Key/value heads by block, key and value length in elements, and the number of blocks."""
    blocks = _required(header, f"{architecture}.block_count")
    if blocks > MAX_BLOCKS:
        raise HeaderFault(f"has {blocks:,} blocks, llama.cpp takes at most {MAX_BLOCKS}")
    heads = _by_block(header, f"{architecture}.attention.head_count", blocks) or (0,) * blocks
    heads_kv = _by_block(header, f"{architecture}.attention.head_count_kv", blocks) or heads
    most_heads = max(heads)
    embedding = _required(header, f"{architecture}.embedding_length")
    default_length = embedding // most_heads if most_heads else 0
    key_length = header.integer(f"{architecture}.attention.key_length")
    value_length = header.integer(f"{architecture}.attention.value_length")
    return (
        heads_kv,
        default_length if key_length is None else key_length,
        default_length if value_length is None else value_length,
        blocks,
    )


def _by_block(header: Header, key: str, blocks: int) -> tuple[int, ...] | None:
    """One number for each block, from one for all or an array; surplus values belong to llama.cpp's extra layers."""
    values = header.integers(key)
    if values is None:
        return None
    if len(values) == 1:
        return values * blocks
    if len(values) < blocks:
        raise HeaderFault(f"has {len(values)} values for {key}, but {blocks} blocks")
    return values[:blocks]


def _required(header: Header, key: str) -> int:
    value = header.integer(key)
    if value is None:
        raise HeaderFault(f"lacks the metadata key {key}")
    if not 0 < value < 1 << 32:
        raise HeaderFault(f"has the impossible value {value:,} for {key}")
    return value


def _vocabulary_size(header: Header, architecture: str) -> int:
    return header.count("tokenizer.ggml.tokens") or header.integer(f"{architecture}.vocab_size") or 0


def _quantization(header: Header, file_type: int | None) -> str:
    """The file type's name; else the tensor type that takes most of the file."""
    named = None if file_type is None else FILE_TYPES.get(file_type & ~_GUESSED)
    return named or max(header.bytes_by_type, key=header.bytes_by_type.__getitem__, default="unknown")


def _part_count(header: Header) -> int:
    count, number = header.integer("split.count") or 1, header.integer("split.no") or 0
    if count > MAX_PARTS:
        raise HeaderFault(f"is one of {count:,} parts, at most {MAX_PARTS:,} are read")
    if number > 0:
        raise HeaderFault(f"is part {number + 1} of {count}, not the first")
    return count


def _with_part(metadata: GgufMetadata, part: Path, number: int) -> GgufMetadata:
    """The metadata with one more part counted in; parts after the first hold tensors and little else."""
    with opened_header(part) as header:
        if header.integer("split.no") != number:
            raise HeaderFault(f"is not part {number + 1} of {metadata.path.name}, though its name says so")
    return replace(
        metadata,
        parts=(*metadata.parts, part),
        size_bytes=metadata.size_bytes + part.stat().st_size,
        parameter_count=metadata.parameter_count + header.parameter_count,
        tensor_count=metadata.tensor_count + header.tensor_count,
        tensor_bytes=metadata.tensor_bytes + header.tensor_bytes,
    )


_REMEDIES: tuple[tuple[str, str], ...] = (
    ("is cut short", DOWNLOAD_AGAIN),
    ("is empty", DOWNLOAD_AGAIN),
    ("is not a GGUF file", GET_ANOTHER),
    ("is part ", "Name the first part instead"),
    ("which llama.cpp does not know", UPDATE),
)


def _remedy(fault: str) -> str:
    return next((remedy for part, remedy in _REMEDIES if part in fault), DOWNLOAD_AGAIN)


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _os_reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _printable(text: str) -> str:
    """A file name in one line of an error, whatever characters it has."""
    return text if text.isprintable() else ascii(text)[1:-1]
