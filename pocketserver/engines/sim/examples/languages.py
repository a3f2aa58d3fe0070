"""The texts that a schema's string keywords allow, as languages; each pattern is read once."""

import random
from collections.abc import Iterable, Iterator

from pocketserver.engines.llama.schema_check import SchemaFault
from pocketserver.engines.sim.examples.demand import Alternative, Node
from pocketserver.engines.sim.examples.effort import Effort
from pocketserver.engines.sim.examples.formats import ANYTHING, PATTERNS
from pocketserver.engines.sim.examples.pattern import PatternFault, read_pattern
from pocketserver.engines.sim.examples.regex import Algebra
from pocketserver.engines.sim.examples.regex import Node as Language
from pocketserver.engines.sim.examples.words import fair_word, word
from pocketserver.engines.sim.prose import prose


class Languages:
    def __init__(self, effort: Effort) -> None:
        self._algebra = Algebra(effort)
        self._searched: dict[str, Language] = {}
        self._formats: dict[str, tuple[Language, Language]] = {}

    def searched(self, pattern: str) -> Language:
        """The texts in which the pattern is found. Raises SchemaFault."""
        if pattern not in self._searched:
            try:
                self._searched[pattern] = self._algebra.inside(read_pattern(pattern, self._algebra))
            except PatternFault as fault:
                raise SchemaFault(f"The pattern {pattern[:80]!r} {fault}") from fault
        return self._searched[pattern]

    def demanded(self, node: Node) -> Iterator[Language]:
        """What `pattern` and `format` of a node ask for."""
        if "pattern" in node:
            yield self.searched(node["pattern"])
        if node.get("format", ANYTHING) != ANYTHING:
            yield self._format(node["format"])[1]

    def matches(self, language: Language, text: str) -> bool:
        return self._algebra.matches(language, text)

    def overlap(self, first: str, second: str) -> bool:
        """Whether some text is found by both patterns."""
        both = self._algebra.both([self.searched(first), self.searched(second)])
        return word(self._algebra, both, random.Random(0)) is not None  # noqa: S311 - repeatable on purpose

    def text(self, alternative: Alternative, chosen: random.Random) -> str | None:
        """A text with the demanded length, patterns and formats; None when there is none."""
        least, most = lengths(alternative)
        if most is not None and least > most:
            return None
        demands = [language for node in alternative.nodes for language in self.demanded(node)]
        if not demands:
            return _plain_text(least, most, chosen)
        length = self._algebra.whole(self._algebra.any_text(least, most))
        pretty = [self._format(name)[0] for name in alternative.values("format") if name != ANYTHING]
        found = self._fair([*demands, *pretty, length], chosen) if pretty else None
        return self._fair([*demands, length], chosen) if found is None else found

    def name(self, patterns: Iterable[str], unwanted: Iterable[str], chosen: random.Random) -> str | None:
        """A text that the patterns find, other than the unwanted ones."""
        others = [self._algebra.negation(self._algebra.whole(self._algebra.text(text))) for text in unwanted]
        return self._fair([*map(self.searched, patterns), *others], chosen)

    def _fair(self, languages: list[Language], chosen: random.Random) -> str | None:
        return fair_word(self._algebra, self._algebra.both(languages), chosen)

    def _format(self, name: str) -> tuple[Language, Language]:
        if name not in self._formats:
            pretty, general = (self._algebra.whole(read_pattern(text, self._algebra)) for text in PATTERNS[name])
            self._formats[name] = (pretty, general)
        return self._formats[name]


def lengths(alternative: Alternative) -> tuple[int, int | None]:
    """The least and the greatest number of characters; None is without end."""
    return max(alternative.values("minLength"), default=0), min(alternative.values("maxLength"), default=None)


def _plain_text(least: int, most: int | None, chosen: random.Random) -> str:
    wanted = max(least, chosen.randint(4, 16))
    text = ""
    for token in prose(str(chosen.random())):
        text += token
        if len(text) >= wanted:
            break
    return text[: most if most is not None and len(text) > most else None].ljust(least, ".")
