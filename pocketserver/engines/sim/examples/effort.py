"""How much work one schema may cost before it is refused."""


class TooComplicated(Exception):  # noqa: N818 - it says why no example was found
    """The search for an example was given up; nothing is known about whether there is one."""


class Effort:
    """Counts steps. A step is some microseconds of work, so that the limit keeps a hostile schema to about a second."""

    def __init__(self, steps: int = 200_000) -> None:
        self._left = steps

    def spend(self, steps: int = 1) -> None:
        """Raises TooComplicated when the steps are used up."""
        self._left -= steps
        if self._left < 0:
            raise TooComplicated
