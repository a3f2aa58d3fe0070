"""A vocabulary of bytes and special tokens: enough for grammars, without a model file."""

import re
from collections.abc import Iterable, Sequence

import llguidance

END = "<|end_of_generation|>"


class ByteVocabulary:
    """256 byte tokens, then the special ones. Called by llguidance to tokenize, so it is its own wrapper's subject."""

    def __init__(self, special: Iterable[str]) -> None:
        self.special = {text: 256 + at for at, text in enumerate([END, *dict.fromkeys(special)])}
        self.eos_token_id = self.special[END]
        self.bos_token_id = None
        marked = [b"\xff" + text.encode() for text in self.special]
        self.tokens = [bytes([byte]) for byte in range(256)] + marked
        self.special_token_ids: Sequence[int] = list(self.special.values())
        self.tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(self))
        longest_first = sorted(self.special, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def __call__(self, text: bytes) -> list[int]:
        return list(text)

    def encode(self, text: str) -> list[int]:
        """Token ids; special tokens are recognised."""
        ids, at = [], 0
        for found in self._pattern.finditer(text):
            ids += [*text[at : found.start()].encode(), self.special[found.group()]]
            at = found.end()
        return [*ids, *text[at:].encode()]

    def problem(self, grammar: str, text: str) -> str | None:
        """Where the grammar refuses `text` followed by the end of the generation, or None when it takes it."""
        matcher = llguidance.LLMatcher(self.tokenizer, llguidance.LLMatcher.grammar_from_lark(grammar), log_level=0)
        if matcher.is_error():
            return f"does not compile: {matcher.get_error()}"
        ids = self.encode(text)
        taken = matcher.try_consume_tokens(ids)
        if matcher.is_error():
            return f"fails: {matcher.get_error()}"
        if taken < len(ids):
            return f"stops behind {bytes(b for b in ids[:taken] if b < 256)!r} before {text[-20:]!r}"
        return None if matcher.is_accepting() or matcher.is_stopped() else "does not end here"
