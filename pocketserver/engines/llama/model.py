"""Weights and vocabulary of one model: from text to tokens and from tokens to bytes."""

import ctypes
from collections.abc import Sequence

import llama_cpp

from pocketserver.engines.llama import blas, native
from pocketserver.engines.llama.frames import Load
from pocketserver.errors import Code, Refusal

_PIECE_BYTES = 16 * 1024


class Vocabulary:
    """Tokens of a loaded model. Safe to use from several threads."""

    def __init__(self, pointer: object) -> None:
        self.pointer = pointer
        self.size = int(llama_cpp.llama_vocab_n_tokens(pointer))
        self.bos = int(llama_cpp.llama_vocab_bos(pointer))
        self.eos = int(llama_cpp.llama_vocab_eos(pointer))
        self.adds_bos = bool(llama_cpp.llama_vocab_get_add_bos(pointer)) and self.bos >= 0
        self.end_tokens = frozenset(t for t in range(self.size) if llama_cpp.llama_vocab_is_eog(pointer, t))
        self._pieces: dict[int, bytes] = {}
        self._longest_token_bytes = 0

    def tokenize(self, text: str) -> list[int]:
        """Tokens of a prompt, markers as control tokens, with exactly one BOS if the model wants one.

        A BOS that the text begins with is that one; none is added to a model that wants none.
        """
        return self.begun(self.split(text))

    def begun(self, tokens: list[int]) -> list[int]:
        """These tokens of a prompt with exactly one BOS if the model wants one."""
        while self.adds_bos and tokens[:2] == [self.bos, self.bos]:
            del tokens[0]
        if self.adds_bos and tokens[:1] != [self.bos]:
            tokens.insert(0, self.bos)
        return tokens

    def split(self, text: str, *, special: bool = True) -> list[int]:
        """Tokens of a text as it stands. With `special`, markers become control tokens."""
        data = text.encode("utf-8", errors="replace")
        count, room = -1, len(data) + 16
        while count < 0 < room:
            buffer = (llama_cpp.llama_token * room)()
            count = llama_cpp.llama_tokenize(self.pointer, data, len(data), buffer, room, False, special)
            room = -count if -count > room else 0  # tokenizers that spell a space in three bytes may need more
        if count < 0:
            raise Refusal(Code.INTERNAL_ERROR, "The text could not be turned into tokens. Shorten it.")
        return list(buffer[:count])

    def marks(self) -> dict[str, int]:
        """Control and user-defined tokens by their text."""
        marked = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED
        found = (t for t in range(self.size) if llama_cpp.llama_vocab_get_attr(self.pointer, t) & marked)
        named = {self.text(token): token for token in found}
        named.pop("", None)
        return named

    def control_texts(self) -> list[str]:
        """The texts of tokens that only a template writes; `split` passes them over unless `special`."""
        marked = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
        found = (t for t in range(self.size) if llama_cpp.llama_vocab_get_attr(self.pointer, t) & marked)
        return [text for token in found if (text := self.text(token))]

    def is_special(self, token: int) -> bool:
        """Whether free text of a grammar never holds this token; the rule is llguidance's (llamacpp.py)."""
        if llama_cpp.llama_vocab_get_attr(self.pointer, token) & llama_cpp.LLAMA_TOKEN_ATTR_CONTROL:
            return True
        text = self.text(token)
        is_defined = llama_cpp.llama_vocab_get_attr(self.pointer, token) & llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED
        return bool(is_defined) and text.startswith("<") and text.endswith(">")

    def longest_token_bytes(self) -> int:
        """The most bytes of text that one token stands for. The first call asks for every token."""
        if self._longest_token_bytes == 0:
            spelt = (self._spell(token, special=special) for token in range(self.size) for special in (False, True))
            self._longest_token_bytes = max(map(len, spelt), default=0) or 1
        return self._longest_token_bytes

    @property
    def can_insert(self) -> bool:
        """Whether the model knows marks for text that is missing in the middle."""
        return int(llama_cpp.llama_vocab_fim_pre(self.pointer)) >= 0

    def piece(self, token: int) -> bytes:
        """The bytes that a token adds to an answer; none for control tokens."""
        found = self._pieces.get(token)
        if found is None:
            found = self._pieces[token] = self._spell(token, special=False)
        return found

    def spelt(self, token: int) -> bytes:
        """A token's bytes with control tokens spelt out."""
        return self._spell(token, special=True)

    def text(self, token: int) -> str:
        """A token's text with control tokens spelt out; empty for the number of no token."""
        return self._spell(token, special=True).decode("utf-8", errors="replace") if token >= 0 else ""

    def _spell(self, token: int, *, special: bool) -> bytes:
        buffer = ctypes.create_string_buffer(_PIECE_BYTES)
        length = llama_cpp.llama_token_to_piece(self.pointer, token, buffer, _PIECE_BYTES, 0, special)
        return buffer.raw[: max(0, length)]


class VocabularyAlone:
    """A model file's vocabulary and template, read in some 0.1 s. Raises Refusal(INTERNAL_ERROR) as `Model` does."""

    def __init__(self, path: str) -> None:
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        self._pointer = _loaded(path, params)
        self.vocabulary = Vocabulary(llama_cpp.llama_model_get_vocab(self._pointer))
        self.chat_template = _chat_template(self._pointer)

    def close(self) -> None:
        """Give the memory back; the vocabulary cannot be used any more."""
        llama_cpp.llama_model_free(self._pointer)


class Model:
    """A loaded GGUF model. Raises Refusal(INTERNAL_ERROR) when llama.cpp does not take the file."""

    def __init__(self, load: Load, progress: object) -> None:
        self.blas = blas.find()
        """What its contexts may use; withdrawn before the weights are laid out."""
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = load.gpu_layers if native.supports_gpu() else 0
        params.use_extra_bufts = load.extra_buffers
        params.progress_callback = progress
        self.pointer = _loaded(load.path, params)
        self.vocabulary = Vocabulary(llama_cpp.llama_model_get_vocab(self.pointer))
        self.layer_count = int(llama_cpp.llama_model_n_layer(self.pointer))
        self.gpu_layers = self._offloaded(load.gpu_layers)

    @property
    def can_be_cut(self) -> bool:
        """False for models that keep a state which no earlier one can be made of."""
        recurrent = llama_cpp.llama_model_is_recurrent(self.pointer)
        return not recurrent and not llama_cpp.llama_model_is_hybrid(self.pointer)

    @property
    def chat_template(self) -> str | None:
        return _chat_template(self.pointer)

    def _offloaded(self, wanted: int) -> int:
        """Layers on the GPU: llama.cpp counts the output layer as one more."""
        if not native.supports_gpu():
            return 0
        return self.layer_count + 1 if wanted < 0 else min(wanted, self.layer_count + 1)


def _loaded(path: str, params: object) -> object:
    pointer: object = llama_cpp.llama_model_load_from_file(path.encode(), params)
    if not pointer:
        raise Refusal(Code.INTERNAL_ERROR, "llama.cpp cannot load this model file. Use another model, or update.")
    return pointer


def _chat_template(pointer: object) -> str | None:
    found = llama_cpp.llama_model_chat_template(pointer, None)
    return found.decode("utf-8", errors="replace") if found else None


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common."""
    length = min(len(left), len(right))
    if left[:length] == right[:length]:
        return length
    return next(index for index in range(length) if left[index] != right[index])
