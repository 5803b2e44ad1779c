"""How long a request that was not taken is left alone."""

import time

FIRST_S = 5.0
LONGEST_S = 300.0


class Backoff:
    """By class of request: each time it is not taken it waits twice as long."""

    def __init__(self) -> None:
        self._tries: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def holds(self, kind: str) -> bool:
        """Whether it is too early to ask for this again."""
        return time.monotonic() < self._until.get(kind, 0.0)

    def refused(self, kind: str) -> int:
        """It was not taken; how often in a row it was not."""
        tries = self._tries[kind] = self._tries.get(kind, 0) + 1
        self._until[kind] = time.monotonic() + min(LONGEST_S, FIRST_S * 2 ** (tries - 1))
        return tries

    def taken(self, kind: str) -> None:
        """It was taken, or given up: the next time is the first."""
        self._tries.pop(kind, None)
        self._until.pop(kind, None)

    def room(self) -> None:
        """Something has ended, so there may be room for others now."""
        self._until.clear()
