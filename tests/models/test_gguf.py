"""The guard in front of native code: what it reads from sound files, and that no broken one gets past it."""

import ctypes
import importlib.util
import os
import random
import struct
import time
import tracemalloc
from pathlib import Path

import pytest

from pocketserver.models.gguf import BadModelFile, GgufMetadata, read_metadata
from pocketserver.models.gguf_tables import ARCHITECTURES, TENSOR_TYPES, VALUE_FORMATS, ValueType
from tests.models import gguf_builder as build

COUNTS = struct.Struct("<IQQ")


def read(tmp_path: Path, content: bytes) -> GgufMetadata:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    return read_metadata(path)


def refusal(tmp_path: Path, content: bytes) -> str:
    """The one line that a file is refused with."""
    with pytest.raises(BadModelFile) as caught:
        read(tmp_path, content)
    line = str(caught.value)
    assert line.startswith(str(tmp_path / "model.gguf"))
    assert "\n" not in line
    assert caught.value.without_folder() == line.removeprefix(f"{tmp_path}/")
    return line


def with_key(**changed: bytes | None) -> bytes:
    return build.gguf(build.model_keys(**changed).values())


def with_tensor(*dimensions: int, kind: int = build.F32, offset: int = 0, name: str = "a") -> bytes:
    return build.gguf(tensors=[build.tensor(name, dimensions, kind, offset)])


def test_a_sound_file_tells_its_model(tmp_path: Path) -> None:
    content = build.gguf()

    metadata = read(tmp_path, content)

    path = tmp_path / "model.gguf"
    assert metadata == GgufMetadata(
        path=path,
        parts=(path,),
        size_bytes=len(content),
        architecture="llama",
        name="Tiny",
        context_length=512,
        block_count=2,
        embedding_length=64,
        head_count=4,
        head_counts_kv=(2, 2),
        key_length=16,
        value_length=16,
        vocabulary_size=4,
        chat_template="{{ messages }}",
        bos_token_id=0,
        eos_token_id=1,
        add_bos=True,
        file_type=3,
        quantization="Q4_1",
        parameter_count=64 * 4 + 64,
        tensor_count=2,
        tensor_bytes=build.TENSOR_BYTES,
        sliding_window=None,
        recurrent=False,
        is_encoder=False,
    )
    assert metadata.kv_cache_bytes(100) == 100 * 2 * 2 * (16 + 16) * 2
    assert metadata.kv_cache_bytes(100, 34 / 32) == 100 * 2 * 2 * (16 + 16) * 34 // 32


def test_version_2_reads_like_version_3(tmp_path: Path) -> None:
    assert read(tmp_path, build.gguf(version=2)) == read(tmp_path, build.gguf(version=3))


def test_the_keys_may_come_in_any_order(tmp_path: Path) -> None:
    keys = list(build.model_keys().values())

    assert read(tmp_path, build.gguf(reversed(keys))) == read(tmp_path, build.gguf(keys))


def test_heads_may_differ_by_block_and_blocks_without_cache_cost_nothing(tmp_path: Path) -> None:
    heads = build.array("jamba.attention.head_count_kv", build.UINT32, [0, 2])
    keys = build.model_keys("jamba", head_count_kv=heads, state=build.key("jamba.ssm.state_size", build.UINT32, 16))

    metadata = read(tmp_path, build.gguf(keys.values()))

    assert (metadata.head_counts_kv, metadata.head_count_kv) == ((0, 2), 2)
    assert metadata.kv_cache_bytes(10) == 10 * 2 * (16 + 16) * 2
    assert metadata.recurrent


def test_own_head_lengths_windows_and_encoders_are_seen(tmp_path: Path) -> None:
    keys = build.model_keys(
        key_length=build.key("llama.attention.key_length", build.UINT32, 256),
        value_length=build.key("llama.attention.value_length", build.UINT32, 128),
        window=build.key("llama.attention.sliding_window", build.UINT32, 64),
        causal=build.key("llama.attention.causal", build.BOOL, 0),
        file_type=None,
        template=None,
        add_bos=None,
    )

    metadata = read(tmp_path, build.gguf(keys.values()))

    assert (metadata.key_length, metadata.value_length, metadata.sliding_window) == (256, 128, 64)
    assert (metadata.is_encoder, metadata.chat_template, metadata.add_bos) == (True, None, None)
    assert metadata.quantization == "F32"  # no file type is named: what takes most of the file


def test_an_alignment_of_its_own_holds_for_the_offsets(tmp_path: Path) -> None:
    tensors = [build.tensor("a", (8,), build.F32, 0), build.tensor("b", (8,), build.F32, 128)]
    keys = [*build.model_keys().values(), build.key("general.alignment", build.UINT32, 128)]

    assert read(tmp_path, build.gguf(keys, tensors, data_bytes=160, alignment=128)).tensor_bytes == 64


HOSTILE: dict[str, tuple[bytes, str]] = {
    "a key without a name, 37 bytes": (
        b"GGUF" + COUNTS.pack(3, 0, 1) + build.key("", build.UINT8, 0),
        "without a name",
    ),
    "2^63 keys": (b"GGUF" + COUNTS.pack(3, 0, 1 << 63) + bytes(64), "9,223,372,036,854,775,808 metadata keys"),
    "2^40 tensors": (b"GGUF" + COUNTS.pack(3, 1 << 40, 0) + bytes(64), "1,099,511,627,776 tensors"),
    "more keys than bytes": (b"GGUF" + COUNTS.pack(3, 0, 1000) + bytes(64), "is cut short"),
    "more tensors than bytes": (b"GGUF" + COUNTS.pack(3, 1000, 0) + bytes(64), "is cut short"),
    "a string of 2^62 bytes": (
        with_key(name=build.text("general.name") + struct.pack("<IQ", build.STRING, 1 << 62)),
        "is cut short",
    ),
    "a key of 2^62 bytes": (with_key(name=struct.pack("<Q", 1 << 62)), "a metadata key of 4,611,686,018,427,387,904"),
    "an array of 2^61 numbers": (
        with_key(name=build.text("x") + struct.pack("<IIQ", build.ARRAY, build.UINT64, 1 << 61)),
        "is cut short",
    ),
    "an array of 2^61 strings": (
        with_key(name=build.text("x") + struct.pack("<IIQ", build.ARRAY, build.STRING, 1 << 61)),
        "2,305,843,009,213,693,952 strings",
    ),
    "arrays 10,000 deep": (
        with_key(name=build.text("x") + struct.pack("<I", build.ARRAY) * 10_000),
        "an array of arrays in 'x'",
    ),
    "a key twice": (with_key(again=build.key("general.name", build.STRING, "Other")), "'general.name' twice"),
    "a value of type 13": (with_key(name=build.text("x") + struct.pack("<IQ", 13, 0)), "unknown type 13"),
    "a boolean of 2": (with_key(name=build.key("x", build.BOOL, 2)), "neither true nor false"),
    "2^60 elements": (with_tensor(1 << 60), "is cut short"),
    "dimensions that overflow": (with_tensor(1 << 32, 1 << 32), "impossible dimensions"),
    "dimensions that overflow to few": (with_tensor(1 << 32, 1 << 32, 1 << 32, 1 << 32), "impossible dimensions"),
    "a dimension of 0": (with_tensor(8, 0), "impossible dimensions"),
    "no dimensions": (with_tensor(), "has 0 dimensions"),
    "five dimensions": (with_tensor(1, 1, 1, 1, 1), "has 5 dimensions"),
    "an offset beyond the file": (with_tensor(8, offset=1 << 40), "at offset 1,099,511,627,776, 0 expected"),
    "tensors that overlap": (
        build.gguf(tensors=[build.tensor("a", (64,), build.F32, 0), build.tensor("b", (64,), build.F32, 32)]),
        "at offset 32, 256 expected",
    ),
    "a tensor of type 255": (with_tensor(8, kind=255), "of type 255, which llama.cpp does not know"),
    "a tensor of a removed type": (with_tensor(32, kind=4), "of type 4,"),
    "columns that fill no block": (with_tensor(33, kind=build.Q4_1), "no whole number of Q4_1 blocks"),
    "a tensor twice": (
        build.gguf(tensors=[build.tensor("a", (8,), build.F32, 0), build.tensor("a", (8,), build.F32, 32)]),
        "the tensor 'a' twice",
    ),
    "a tensor without a name": (with_tensor(8, name=""), "a tensor without a name"),
    "a tensor name of 64 bytes": (with_tensor(8, name="n" * 64), "a tensor name of 64 bytes"),
    "no tensors": (build.gguf(tensors=[], data_bytes=0), "holds no weights"),
    "no architecture": (with_key(architecture=None), "does not name its architecture"),
    "an architecture that is a number": (
        with_key(architecture=build.key("general.architecture", build.UINT32, 1)),
        "a uint32 where general.architecture must be a string",
    ),
    "an architecture that is a list": (
        with_key(architecture=build.array("general.architecture", build.STRING, ["llama"])),
        "an array where general.architecture must be a single value",
    ),
    "an architecture that nobody knows": (
        build.gguf(build.model_keys("nonsense").values()),
        "of the architecture 'nonsense', which llama.cpp does not know",
    ),
    "an architecture that writes on the terminal": (
        build.gguf(build.model_keys("\x1b]0;x\x07\n").values()),
        r"'\x1b]0;x\x07\n'",
    ),
    "a picture part": (build.gguf(build.model_keys("clip").values()), "(mmproj)"),
    "an adapter": (with_key(name=build.key("general.type", build.STRING, "adapter")), "LoRA adapter"),
    "an alignment of 0": (with_key(name=build.key("general.alignment", build.UINT32, 0)), "general.alignment of 0"),
    "an alignment of 3": (with_key(name=build.key("general.alignment", build.UINT32, 3)), "general.alignment of 3"),
    "an alignment of 2^31": (with_key(name=build.key("general.alignment", build.UINT32, 1 << 31)), "no power of two"),
    "no blocks": (with_key(block_count=build.key("llama.block_count", build.UINT32, 0)), "the impossible value 0"),
    "2^31 blocks": (
        with_key(block_count=build.key("llama.block_count", build.UINT32, 1 << 31)),
        "2,147,483,648 blocks",
    ),
    "a negative length": (
        with_key(context_length=build.key("llama.context_length", build.INT32, -1)),
        "negative value -1 for llama.context_length",
    ),
    "a length in words": (
        with_key(context_length=build.key("llama.context_length", build.STRING, "long")),
        "a string where llama.context_length must be a whole number",
    ),
    "no context length": (with_key(context_length=None), "lacks the metadata key llama.context_length"),
    "heads for too few blocks": (
        with_key(
            block_count=build.key("llama.block_count", build.UINT32, 3),
            head_count=build.array("llama.attention.head_count", build.UINT32, [1, 2]),
        ),
        "2 values for llama.attention.head_count, but 3 blocks",
    ),
    "heads of no block": (
        with_key(head_count=build.array("llama.attention.head_count", build.UINT32, [])),
        "0 values for llama.attention.head_count",
    ),
    "a chat template of 5 MiB": (
        with_key(template=build.key("tokenizer.chat_template", build.STRING, "x" * (5 << 20))),
        "tokenizer.chat_template of 5,242,880 bytes",
    ),
    "version 1": (build.gguf(version=1), "GGUF version 1"),
    "version 4": (build.gguf(version=4), "GGUF version 4"),
    "the other byte order": (b"GGUF" + struct.pack(">IQQ", 3, 2, 9) + bytes(64), "big-endian"),
    "a web page": (b"<!DOCTYPE html><html><body>Not found</body></html>", "is not a GGUF file"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_at_once_in_little_memory(name: str, tmp_path: Path) -> None:
    content, said = HOSTILE[name]
    tracemalloc.start()
    started = time.perf_counter()

    line = refusal(tmp_path, content)

    seconds = time.perf_counter() - started
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert said in line
    assert seconds < 1
    assert peak_bytes < 100_000_000


def test_the_remedy_fits_the_fault(tmp_path: Path) -> None:
    assert refusal(tmp_path, build.gguf()[:-1]).endswith("Download the file again.")
    assert refusal(tmp_path, b"MZ\x90\x00 a program").endswith("Use a GGUF file of a language model.")
    assert refusal(tmp_path, HOSTILE["an architecture that nobody knows"][0]).endswith("or use another model.")


def test_a_vocabulary_of_a_quarter_million_is_counted_without_being_made(tmp_path: Path) -> None:
    tokens = build.text("tokenizer.ggml.tokens") + struct.pack("<IIQ", build.ARRAY, build.STRING, 262_144)
    content = with_key(tokens=tokens + build.text("a token of some length") * 262_144)
    tracemalloc.start()

    metadata = read(tmp_path, content)

    assert tracemalloc.get_traced_memory()[1] < len(content) + 5_000_000
    tracemalloc.stop()
    assert metadata.vocabulary_size == 262_144


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound file of the default model's form: a header of 2 MB, 98 MB of weights (a hole in the file)."""
    path = tmp_path_factory.mktemp("large") / "large.gguf"
    tokens = build.array("tokenizer.ggml.tokens", build.STRING, ["token of a model"] * 80_000)
    weights = build.tensor("token_embd.weight", (4096, 38_400), build.Q4_1, 0)
    header = build.gguf(build.model_keys(tokens=tokens).values(), [weights], data_bytes=0)
    path.write_bytes(header)
    os.truncate(path, len(header) + 4096 * 38_400 // 32 * 20)
    assert read_metadata(path).tensor_bytes == 98_304_000
    return path


@pytest.mark.parametrize("kept", ["10 %", "50 %", "99 %", "size - 1"])
def test_a_broken_download_is_refused_with_both_sizes(kept: str, large: Path, tmp_path: Path) -> None:
    size = large.stat().st_size
    cut_size = size - 1 if kept == "size - 1" else size * int(kept[:-2]) // 100
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(large.read_bytes()[: 3 << 20])
    os.truncate(cut, cut_size)

    with pytest.raises(BadModelFile) as caught:
        read_metadata(cut)

    assert str(caught.value) == f"{cut} is cut short: {cut_size:,} bytes, {size:,} expected. Download the file again."


@pytest.mark.parametrize("kept_bytes", [0, 1, 4, 23, 24, 100, 1_000_000])
def test_a_file_that_ends_in_its_header_is_refused_with_both_sizes(
    kept_bytes: int, large: Path, tmp_path: Path
) -> None:
    line = refusal(tmp_path, large.read_bytes()[:kept_bytes])

    assert f"{kept_bytes:,} bytes, at least " in line
    assert line.endswith("expected. Download the file again.")


def test_no_prefix_of_a_sound_file_is_taken(tmp_path: Path) -> None:
    content = build.gguf()

    for kept_bytes in range(len(content)):
        with pytest.raises(BadModelFile):
            read(tmp_path, content[:kept_bytes])


def test_ten_thousand_mutations_end_in_a_refusal_or_a_checked_model(tmp_path: Path) -> None:
    chance, content = random.Random(1), build.gguf()
    header_bytes = len(content) - build.TENSOR_BYTES
    refusals: list[str] = []
    for _ in range(10_000):
        try:
            metadata = read(tmp_path, mutated(content, header_bytes, chance))
        except BadModelFile as error:
            refusals.append(str(error))
        else:
            assert metadata.tensor_bytes <= metadata.size_bytes
            assert metadata.kv_cache_bytes(8192) >= 0
    assert len(refusals) > 5_000
    assert all(line.isprintable() for line in refusals)


def mutated(content: bytes, header_bytes: int, chance: random.Random) -> bytes:
    """The file with some bytes of its header flipped, a count made extreme, or a piece cut out or doubled."""
    changed = bytearray(content)
    at = chance.randrange(4, header_bytes)
    match chance.randrange(4):
        case 0:
            for _ in range(chance.randint(1, 6)):
                changed[chance.randrange(header_bytes)] = chance.randrange(256)
        case 1:
            extreme = chance.choice((0, 1, 255, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, (1 << 64) - 1))
            changed[at : at + 8] = struct.pack("<Q", extreme)
        case 2:
            del changed[at : at + chance.randint(1, 40)]
        case _:
            changed[at:at] = changed[at : at + chance.randint(1, 40)]
    return bytes(changed)


def test_a_split_model_is_read_from_its_first_part_and_summed_up(tmp_path: Path) -> None:
    first, second = build.write_split_model(tmp_path, "big")

    metadata = read_metadata(first)

    assert metadata.parts == (first, second)
    assert metadata.size_bytes == first.stat().st_size + second.stat().st_size
    assert (metadata.tensor_count, metadata.tensor_bytes) == (2, build.TENSOR_BYTES)


def test_a_split_model_is_refused_when_a_part_is_missing_cut_or_taken_for_the_model(tmp_path: Path) -> None:
    first, second = build.write_split_model(tmp_path, "big")
    with pytest.raises(BadModelFile, match="is part 2 of 2, not the first"):
        read_metadata(second)

    os.truncate(second, second.stat().st_size - 1)
    with pytest.raises(BadModelFile, match=r"big-00002-of-00002\.gguf is cut short"):
        read_metadata(first)

    second.write_bytes(first.read_bytes())
    with pytest.raises(BadModelFile, match="is not part 2"):
        read_metadata(first)

    second.unlink()
    with pytest.raises(BadModelFile, match=r"big-00002-of-00002\.gguf does not exist"):
        read_metadata(first)

    with pytest.raises(BadModelFile, match="does not end in -00001-of-00002"):
        read_metadata(first.rename(tmp_path / "renamed.gguf"))


@pytest.mark.parametrize(("path", "said"), [("missing.gguf", "does not exist"), (".", "is not a file")])
def test_what_is_no_file_is_refused(path: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(BadModelFile, match=said):
        read_metadata(tmp_path / path)


def test_a_path_with_a_zero_byte_is_refused() -> None:
    with pytest.raises(BadModelFile):
        read_metadata(Path("a\0b.gguf"))


def test_a_file_name_cannot_write_on_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "evil\x1b[2J\nname.gguf"
    path.write_bytes(b"GG")

    with pytest.raises(BadModelFile) as caught:
        read_metadata(path)

    assert str(caught.value).isprintable()


def test_every_value_type_of_fixed_size_has_a_format() -> None:
    assert set(VALUE_FORMATS) == set(ValueType) - {ValueType.STRING, ValueType.ARRAY}


def test_block_sizes_are_those_of_ggml() -> None:
    package = importlib.util.find_spec("llama_cpp")
    assert package is not None
    assert package.origin is not None
    library = next((Path(package.origin).parent / "lib").glob("*ggml-base*"))
    ggml = ctypes.CDLL(str(library))
    ggml.ggml_type_size.restype = ctypes.c_size_t
    ggml.ggml_blck_size.restype = ctypes.c_int64

    for number, kind in TENSOR_TYPES.items():
        assert (kind.block_elements, kind.block_bytes) == (ggml.ggml_blck_size(number), ggml.ggml_type_size(number))


def test_common_architectures_are_known() -> None:
    assert {"llama", "qwen2", "qwen3", "gemma3", "phi3", "mamba", "gpt-oss", "bert"} <= ARCHITECTURES
