"""A prompt has exactly one begin token when the model wants one, and none when it wants none."""

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pocketserver.engines.llama.model import Vocabulary

pytestmark = pytest.mark.real_model

Open = Callable[[bool], Vocabulary]


@pytest.fixture
def vocabulary_that(default_model_path: Path) -> Iterator[Open]:
    """The default model's vocabulary, without weights, told to add a begin token or not."""
    llama_cpp = pytest.importorskip("llama_cpp")
    from pocketserver.engines.llama import native

    native.quiet()
    opened = []

    def open_one(adds_bos: bool) -> Vocabulary:
        overrides = (llama_cpp.llama_model_kv_override * 2)()
        overrides[0].tag = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_BOOL
        overrides[0].key = b"tokenizer.ggml.add_bos_token"
        overrides[0].value.val_bool = adds_bos
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        params.kv_overrides = ctypes.cast(overrides, ctypes.POINTER(llama_cpp.llama_model_kv_override))
        model = llama_cpp.llama_model_load_from_file(str(default_model_path).encode(), params)
        opened.append((model, overrides))
        return Vocabulary(llama_cpp.llama_model_get_vocab(model))

    yield open_one
    for model, _ in opened:
        llama_cpp.llama_model_free(model)


def test_exactly_one_begin_token_whoever_writes_it(vocabulary_that: Open) -> None:
    vocabulary = vocabulary_that(True)
    bos, plain = vocabulary.bos, vocabulary.split("hi")
    written = vocabulary.text(bos)
    assert vocabulary.tokenize("hi") == [bos, *plain]
    assert vocabulary.tokenize(written + "hi") == [bos, *plain]
    assert vocabulary.tokenize(written + written + "hi") == [bos, *plain]
    assert vocabulary.tokenize("") == [bos]


def test_a_model_that_wants_none_gets_what_the_text_says(vocabulary_that: Open) -> None:
    vocabulary = vocabulary_that(False)
    assert vocabulary.bos not in vocabulary.tokenize("hi")
    assert vocabulary.tokenize(vocabulary.text(vocabulary.bos) + "hi")[0] == vocabulary.bos


def test_pieces_of_a_text_are_its_bytes(vocabulary_that: Open) -> None:
    vocabulary = vocabulary_that(False)
    text = "na\u00efve \U0001f469\u200d\U0001f4bb \u65e5\u672c\n\tend"
    assert b"".join(map(vocabulary.piece, vocabulary.split(text))).decode() == text
    assert vocabulary.piece(vocabulary.eos) == b""
    assert vocabulary.text(-1) == ""
