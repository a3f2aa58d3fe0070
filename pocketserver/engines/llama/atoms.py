"""Compares texts by the units that models write: special tokens and tags are one unit, other text is characters."""

import re
from collections.abc import Collection


class Gap:
    """Characters that stand for something else in a rendered text. Private use, so no template writes them."""

    ID = "\ue001"
    """A call's id."""


class Atoms:
    """Cuts text into atoms: a special token, else `<…>`, else `[UPPERCASE]`, else one character.

    A tag that was cut off (`<invoke name="` at the end, `">` at the start) is one atom as well.
    """

    def __init__(self, special_tokens: Collection[str]) -> None:
        longest_first = sorted((token for token in special_tokens if len(token) > 1), key=len, reverse=True)
        special = [re.escape(token) for token in longest_first]
        tags = [r"<[^<>\n]*>", r"</?[\w:.|-][^<>\n]*$", r"^[^<>\n]{0,200}>", r"\[/?[A-Z_]+\]"]
        self._pattern = re.compile("|".join([*special, *tags, r"[\s\S]"]))

    def cut(self, text: str) -> list[str]:
        return self._pattern.findall(text)


def common_prefix(atoms: Atoms, first: str, second: str) -> str:
    shared = []
    for one, other in zip(atoms.cut(first), atoms.cut(second), strict=False):
        if one != other:
            break
        shared.append(one)
    return "".join(shared)


def common_suffix(atoms: Atoms, first: str, second: str) -> str:
    shared: list[str] = []
    for one, other in zip(reversed(atoms.cut(first)), reversed(atoms.cut(second)), strict=False):
        if one != other:
            break
        shared.append(one)
    return "".join(reversed(shared))
