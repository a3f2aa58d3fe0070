"""What the servers are asked: prose of a wanted length that repeats nothing, conversations, and one nested schema.

Everything follows from a seed, so that two servers, or one before and after a restart, can be asked the same.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from pocketserver.bench.client import ChatClient

_PEOPLE = (
    "the baker", "a tired sailor", "the young teacher", "an old gardener", "my neighbour", "the watchmaker", "a nurse",
    "the ferry captain", "our postman", "a travelling musician", "the librarian", "a careful painter",
)  # fmt: skip
_DEEDS = (
    "carried", "repaired", "described", "forgot", "painted", "borrowed", "measured", "sold", "found", "wrapped",
    "remembered", "counted", "cleaned", "drew", "examined",
)  # fmt: skip
_THINGS = (
    "a basket of apples", "the broken lantern", "seven letters", "an oak table", "the silver key", "two blankets",
    "a map of the coast", "the morning bread", "a bicycle", "some warm soup", "the green door", "a wooden boat",
    "three small coins", "the winter coat",
)  # fmt: skip
_PLACES = (
    "near the harbour", "behind the station", "on the long bridge", "in the market", "at the edge of the forest",
    "under the clock", "beside the river", "in a quiet kitchen", "above the valley", "outside the museum",
)  # fmt: skip
_TIMES = (
    "before sunrise", "after the rain", "late in the evening", "on a cold Monday", "during the festival",
    "while the others slept", "as the bells rang", "in early spring",
)  # fmt: skip

TOKENS_PER_WORD = 1.2
"""A first guess for English prose, until a server has counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Makes prompts of a given number of tokens, by what one server counted; see `calibrated`."""

    seed: int
    tokens_per_word: float = TOKENS_PER_WORD
    overhead_tokens: float = 0.0

    def prose(self, name: object, tokens: float) -> str:
        """About that many tokens of text; a longer text of the same name begins with the shorter one."""
        return prose(f"{self.seed}/{name}", max(1, round(tokens / self.tokens_per_word)))

    def single(self, name: object, tokens: int, request: str) -> list[Mapping[str, str]]:
        """One user turn that makes about `tokens` prompt tokens, the model's own template included."""
        room = tokens - self.overhead_tokens - len(request.split()) * self.tokens_per_word
        return [{"role": "user", "content": f"{self.prose(name, room)}\n\n{request}"}]

    def conversation(self, name: object, tokens: int) -> list[Mapping[str, str]]:
        """A conversation of about `tokens` tokens with fixed answers, ending with a question."""
        turns = 4
        each = (tokens - self.overhead_tokens) / (2 * turns)
        chat: list[Mapping[str, str]] = []
        for turn in range(turns):
            chat.append({"role": "user", "content": self.prose(f"{name}/{turn}/user", each)})
            chat.append({"role": "assistant", "content": self.prose(f"{name}/{turn}/assistant", each)})
        return [*chat, {"role": "user", "content": "Which person of these stories would you like to meet?"}]


async def calibrated(client: ChatClient, seed: int) -> Prompts:
    """Prompts sized by the server's own count; by a guess where it sends no usage."""
    few, many = 40, 240
    counts = []
    for words in (few, many):
        chat = [{"role": "user", "content": prose(f"{seed}/calibration", words)}]
        counts.append((await client.answer(chat, 1)).prompt_tokens)
    if counts[0] is None or counts[1] is None or counts[1] <= counts[0]:
        return Prompts(seed=seed)
    tokens_per_word = (counts[1] - counts[0]) / (many - few)
    overhead = max(0.0, counts[0] - few * tokens_per_word)
    return Prompts(seed=seed, tokens_per_word=tokens_per_word, overhead_tokens=overhead)


def prose(seed: str, words: int) -> str:
    """Exactly that many words of made-up sentences."""
    source = random.Random(seed)  # noqa: S311 - text, no secret
    written: list[str] = []
    while len(written) < words:
        written += _sentence(source).split()
    return " ".join(written[:words])


def _sentence(source: random.Random) -> str:
    parts = [source.choice(part) for part in (_TIMES, _PEOPLE, _DEEDS, _THINGS, _PLACES)]
    return f"{parts[0]}, {parts[1]} {parts[2]} {parts[3]} {parts[4]}.".capitalize()


def rewritable(number: int) -> tuple[str, str, str]:
    """A text of about 300 tokens in which no phrase comes twice, a word of it, and one to put in its place."""
    old, new = _CHANGES[number % len(_CHANGES)]
    return f"Part {number + 1}. {_LIGHTHOUSE}", old, new


_LIGHTHOUSE = (
    "The lighthouse at Northern Point was built in 1874 by a company of fishermen who had lost too many boats on the "
    "rocks. Its tower is thirty metres high and made of grey granite, which came by sea from a quarry two days away. "
    "For almost a century a keeper lived there with his family. Every evening he climbed one hundred and forty steps, "
    "trimmed the wick, polished the glass and wound up the heavy clockwork that turned the lens. When fog rolled in, "
    "his children rang a bronze bell until ships answered with their horns. Supplies arrived once a month: flour, "
    "coffee, lamp oil, newspapers and, if the weather allowed it, fresh oranges. In 1968 engineers replaced the flame "
    "with an electric bulb, and soon afterwards nobody needed to stay overnight. The house stood empty, its roof "
    "leaked, and swallows nested in the pantry. Then a group of students from the nearby university asked whether they "
    "could restore it. They sanded floors, mended windows, planted potatoes behind the wall, and opened a small museum "
    "where visitors can read the old logbooks. Today about nine thousand people come each summer. Most of them stay "
    "for sunset, because the light still flashes twice every ten seconds, just as it did when sailors first steered "
    "home by it."
)
_CHANGES = (
    ("granite", "marble"), ("oranges", "lemons"), ("students", "musicians"), ("potatoes", "roses"),
    ("swallows", "pigeons"), ("museum", "library"), ("coffee", "sugar"), ("bronze", "silver"),
)  # fmt: skip


CUSTOMER_SCHEMA: Mapping[str, object] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["first_name", "last_name", "email_address", "postal_address", "subscriptions"],
    "properties": {
        "first_name": {"type": "string", "maxLength": 12},
        "last_name": {"type": "string", "maxLength": 12},
        "email_address": {"type": "string", "pattern": "^[a-z]{3,8}@example\\.com$"},
        "postal_address": {
            "type": "object",
            "additionalProperties": False,
            "required": ["street_name", "house_number", "postal_code", "country_code"],
            "properties": {
                "street_name": {"type": "string", "maxLength": 16},
                "house_number": {"type": "integer", "minimum": 1, "maximum": 999},
                "postal_code": {"type": "string", "pattern": "^[0-9]{5}$"},
                "country_code": {"enum": ["GERMANY", "FRANCE", "SWITZERLAND", "AUSTRIA"]},
            },
        },
        "subscriptions": {
            "type": "array",
            "minItems": 3,
            "maxItems": 3,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["newsletter_name", "delivery_frequency", "is_active"],
                "properties": {
                    "newsletter_name": {"enum": ["technology-weekly", "science-monthly"]},
                    "delivery_frequency": {"enum": ["immediately", "once-a-week", "once-a-month"]},
                    "is_active": {"type": "boolean"},
                },
            },
        },
    },
}
"""A nested customer: long fixed names and a few free values, as programs ask for."""
