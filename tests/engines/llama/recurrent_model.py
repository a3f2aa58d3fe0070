"""A Mamba model small enough to be written by a test: random weights, a vocabulary of single bytes.

It says nothing sensible, but has the memory of its kind: a state that cannot be cut back to an earlier token.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.models.gguf_builder import BOOL, F32, FLOAT32, INT32, STRING, UINT32, array, key, tensor

_WIDTH, _INNER, _STATE, _RANK, _KERNEL, _BLOCKS = 64, 128, 16, 4, 4, 2
_TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
_VOCABULARY = len(_TOKENS)
_UNKNOWN, _CONTROL, _BYTE = 2, 3, 6
_ALIGNMENT = 32

Weights = Mapping[str, npt.NDArray[np.float32]]


def write_recurrent_model(path: Path, marks: Sequence[str] = ()) -> Path:
    """Write the model; the same each time. `marks` are control tokens beside the usual ones."""
    weights, keys = _weights(_VOCABULARY + len(marks)), _keys(marks)
    head = b"".join(
        [b"GGUF", *(int(n).to_bytes(size, "little") for n, size in _counts(weights, keys)), *keys, *_infos(weights)]
    )
    data = b"".join(_padded(weight.astype("<f4").tobytes()) for weight in weights.values())
    path.write_bytes(_padded(head) + data)
    return path


def _counts(weights: Weights, keys: Sequence[bytes]) -> list[tuple[int, int]]:
    return [(3, 4), (len(weights), 8), (len(keys), 8)]


def _keys(marks: Sequence[str]) -> list[bytes]:
    sizes = {
        "context_length": 4096,
        "embedding_length": _WIDTH,
        "feed_forward_length": 0,
        "block_count": _BLOCKS,
        "attention.head_count": 0,
        "ssm.conv_kernel": _KERNEL,
        "ssm.inner_size": _INNER,
        "ssm.state_size": _STATE,
        "ssm.time_step_rank": _RANK,
    }
    return [
        key("general.architecture", STRING, "mamba"),
        key("general.name", STRING, "Tiny recurrent"),
        key("general.file_type", UINT32, 0),
        *(key(f"mamba.{name}", UINT32, size) for name, size in sizes.items()),
        key("mamba.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
        key("tokenizer.ggml.model", STRING, "llama"),
        array("tokenizer.ggml.tokens", STRING, [*_TOKENS, *marks]),
        array("tokenizer.ggml.scores", FLOAT32, [0.0] * (_VOCABULARY + len(marks))),
        array(
            "tokenizer.ggml.token_type", INT32, [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256, *[_CONTROL] * len(marks)]
        ),
        key("tokenizer.ggml.bos_token_id", UINT32, 1),
        key("tokenizer.ggml.eos_token_id", UINT32, 2),
        key("tokenizer.ggml.add_bos_token", BOOL, 0),
        key("tokenizer.ggml.add_space_prefix", BOOL, 0),
    ]


def _weights(vocabulary: int) -> Weights:
    random = np.random.default_rng(7)

    def drawn(*shape: int, scale: float = 0.3) -> npt.NDArray[np.float32]:
        return (random.standard_normal(shape) * scale).astype(np.float32)

    def ones(*shape: int) -> npt.NDArray[np.float32]:
        return np.ones(shape, np.float32)

    weights = {"token_embd.weight": drawn(vocabulary, _WIDTH), "output_norm.weight": ones(_WIDTH)}
    for block in range(_BLOCKS):
        weights |= {
            f"blk.{block}.attn_norm.weight": ones(_WIDTH),
            f"blk.{block}.ssm_in.weight": drawn(2 * _INNER, _WIDTH),
            f"blk.{block}.ssm_conv1d.weight": drawn(_INNER, _KERNEL),
            f"blk.{block}.ssm_conv1d.bias": drawn(_INNER),
            f"blk.{block}.ssm_x.weight": drawn(_RANK + 2 * _STATE, _INNER),
            f"blk.{block}.ssm_dt.weight": drawn(_INNER, _RANK),
            f"blk.{block}.ssm_dt.bias": drawn(_INNER),
            f"blk.{block}.ssm_a": -np.abs(drawn(_INNER, _STATE, scale=0.05)),
            f"blk.{block}.ssm_d": ones(_INNER),
            f"blk.{block}.ssm_out.weight": drawn(_WIDTH, _INNER),
        }
    return weights


def _infos(weights: Weights) -> list[bytes]:
    """Names, shapes (the fastest dimension first) and places."""
    infos, offset = [], 0
    for name, weight in weights.items():
        infos.append(tensor(name, reversed(weight.shape), F32, offset))
        offset += len(_padded(bytes(weight.nbytes)))
    return infos


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)
