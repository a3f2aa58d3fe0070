"""The simulator's embeddings: unit vectors that depend on the text alone, and are alike for texts that share words."""

import hashlib
import math
import struct
from collections.abc import Callable, Iterable, Sequence

from pocketserver.chat import EmbeddingInput
from pocketserver.engines.sim.prose import tokens_of

DIMENSIONS = 256
_SHARE_OF_WORDS = 4.0


def tokens_to_embed(
    given: EmbeddingInput, split: Callable[[str], Sequence[str] | Sequence[bytes]] = tokens_of
) -> list[str]:
    """The device's tokens of a text; a list of token ids stands for itself."""
    if not isinstance(given, str):
        return [f"<{token}>" for token in given]
    return [token if isinstance(token, str) else token.decode(errors="replace") for token in split(given)]


def unit_vector(tokens: Iterable[str], *, dimensions: int = DIMENSIONS) -> tuple[float, ...]:
    """A vector of length 1, the same for the same tokens on every machine.

    Each word adds its own direction, so that related texts point the same way; the order adds a little.
    """
    words = list(tokens)
    summed = [0.0] * dimensions
    for seed, weight in [("".join(words), 1.0), *((word.strip().lower(), _SHARE_OF_WORDS) for word in words)]:
        for index, value in enumerate(_direction(seed, dimensions)):
            summed[index] += weight * value
    length = math.sqrt(math.fsum(value * value for value in summed))
    return tuple(value / length for value in summed)


def _direction(seed: str, dimensions: int) -> tuple[float, ...]:
    """Numbers from -1 to 1, spread by a hash."""
    data = hashlib.shake_128(seed.encode("utf-8", "surrogatepass")).digest(2 * dimensions)
    return tuple((value + 0.5) / 32_768 for value in struct.unpack(f"<{dimensions}h", data))
