"""Writes GGUF files, sound ones and broken ones, byte by byte."""

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)
_FORMATS = {UINT8: "B", UINT16: "H", UINT32: "I", INT32: "i", FLOAT32: "f", BOOL: "B", UINT64: "Q", INT64: "q"}
F32, F16, Q4_1 = 0, 1, 3


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def payload(kind: int, value: object) -> bytes:
    return text(value) if isinstance(value, str | bytes) else struct.pack("<" + _FORMATS[kind], value)


def key(name: str | bytes, kind: int, value: object) -> bytes:
    return text(name) + struct.pack("<I", kind) + payload(kind, value)


def array(name: str, kind: int, values: Sequence[object]) -> bytes:
    head = text(name) + struct.pack("<IIQ", ARRAY, kind, len(values))
    return head + b"".join(payload(kind, value) for value in values)


def tensor(name: str, dimensions: Iterable[int], kind: int, offset: int) -> bytes:
    sizes = list(dimensions)
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def model_keys(family: str = "llama", /, **changed: bytes | None) -> dict[str, bytes]:
    """The keys of a small sound model. A keyword replaces one of them; None leaves it out."""
    keys: dict[str, bytes | None] = {
        "architecture": key("general.architecture", STRING, family),
        "name": key("general.name", STRING, "Tiny"),
        "file_type": key("general.file_type", UINT32, 3),
        "context_length": key(f"{family}.context_length", UINT32, 512),
        "embedding_length": key(f"{family}.embedding_length", UINT32, 64),
        "block_count": key(f"{family}.block_count", UINT32, 2),
        "head_count": key(f"{family}.attention.head_count", UINT32, 4),
        "head_count_kv": key(f"{family}.attention.head_count_kv", UINT32, 2),
        "tokens": array("tokenizer.ggml.tokens", STRING, ["<s>", "</s>", "hello", "world"]),
        "bos": key("tokenizer.ggml.bos_token_id", UINT32, 0),
        "eos": key("tokenizer.ggml.eos_token_id", UINT32, 1),
        "add_bos": key("tokenizer.ggml.add_bos_token", BOOL, 1),
        "template": key("tokenizer.chat_template", STRING, "{{ messages }}"),
    } | changed
    return {name: written for name, written in keys.items() if written is not None}


TENSORS = (tensor("token_embd.weight", (64, 4), Q4_1, 0), tensor("output_norm.weight", (64,), F32, 160))
TENSOR_BYTES = 160 + 256


def gguf(
    keys: Iterable[bytes] | None = None,
    tensors: Sequence[bytes] = TENSORS,
    *,
    data_bytes: int = TENSOR_BYTES,
    alignment: int = 32,
    version: int = 3,
) -> bytes:
    """A whole file; without arguments a sound one."""
    written = list(model_keys().values() if keys is None else keys)
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(written)) + b"".join(written) + b"".join(tensors)
    return header + bytes(-len(header) % alignment + data_bytes)


def write_model(path: Path, **changed: bytes | None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gguf(model_keys(**changed).values()))
    return path


def write_split_model(folder: Path, name: str) -> list[Path]:
    """A model in two files, as llama.cpp splits one."""
    paths = [folder / f"{name}-{number:05}-of-00002.gguf" for number in (1, 2)]
    split = [[key("split.no", UINT16, number), key("split.count", UINT16, 2)] for number in (0, 1)]
    paths[0].write_bytes(gguf([*model_keys().values(), *split[0]], TENSORS[:1], data_bytes=160))
    paths[1].write_bytes(gguf(split[1], [tensor("output_norm.weight", (64,), F32, 0)], data_bytes=256))
    return paths
