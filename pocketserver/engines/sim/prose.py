"""Text from a seed: the same seed gives the same words on every machine."""

import random
from collections.abc import Iterator

DEFAULT_TOKENS = 40
_WORDS = """
the a small quiet old bright narrow harbour garden letter window river lantern train market teacher baker captain
child neighbour story morning evening winter summer bread coffee paper music walked opened carried found wrote
remembered waited listened answered turned slowly gently again almost always never perhaps under over beside
through before after while because until and but so then
""".split()  # noqa: SIM905 - words read better than a list of quotes


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
    current = ""
    for character in text:
        begins = character.isspace() and not current.isspace() and current
        if begins or len(current) >= 12:
            tokens.append(current)
            current = ""
        current += character
    return [*tokens, current] if current else tokens
