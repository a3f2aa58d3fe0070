"""Text from a seed: the same seed gives the same words on every machine. And the simulator's way to count tokens."""

import random
import re
from collections.abc import Iterator
from functools import lru_cache

DEFAULT_TOKENS = 40
TOKEN_CHARACTERS = 12
"""The longest token; a longer word is several."""

_WORDS = """
the a small quiet old bright narrow harbour garden letter window river lantern train market teacher baker captain
child neighbour story morning evening winter summer bread coffee paper music walked opened carried found wrote
remembered waited listened answered turned slowly gently again almost always never perhaps under over beside
through before after while because until and but so then
""".split()  # noqa: SIM905 - words read better than a list of quotes
_SHORT_CHARACTERS = 256
_PIECE = re.compile(r"\s*\S+|\s+")


def prose(seed: str) -> Iterator[str]:
    """Endless tokens: a word each, with a capital and a full stop every eight to fourteen words."""
    chosen = random.Random(seed)  # noqa: S311 - repeatable on purpose
    lead = ""
    while True:
        length = chosen.randint(8, 14)
        for index in range(length):
            word = chosen.choice(_WORDS)
            word = word.capitalize() if index == 0 else word
            yield lead + word + ("." if index == length - 1 else "")
            lead = " "


def tokens_of(text: str) -> list[str]:
    """The simulator's tokenizer: a token is a run of white space with the word after it, cut at 12 characters.

    Joined, the tokens are the text again. It stands in for a real tokenizer where only counts and pieces matter.
    """
    tokens: list[str] = []
    for piece in _PIECE.findall(text):
        if len(piece) <= TOKEN_CHARACTERS:
            tokens.append(piece)
        else:
            tokens.extend(piece[at : at + TOKEN_CHARACTERS] for at in range(0, len(piece), TOKEN_CHARACTERS))
    return tokens


def token_count(text: str) -> int:
    """How many tokens `tokens_of` makes."""
    return _count_again(text) if len(text) <= _SHORT_CHARACTERS else _count(text)


def _count(text: str) -> int:
    return sum([-(-len(piece) // TOKEN_CHARACTERS) for piece in _PIECE.findall(text)])


_count_again = lru_cache(maxsize=1024)(_count)
"""Tests ask the same short questions again and again."""
