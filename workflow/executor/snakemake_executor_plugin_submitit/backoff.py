"""When to retry requests that the scheduler did not take."""

import time

FIRST_S = 5.0
LONGEST_S = 300.0


class Backoff:
    """By kind of request: each time it is not taken, the wait doubles."""

    def __init__(self) -> None:
        self._tries: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def must_wait(self, kind: str) -> bool:
        """Whether it is too early to send this kind of request again."""
        return time.monotonic() < self._until.get(kind, 0.0)

    def count_refusal(self, kind: str) -> int:
        """Note that it was not taken; returns how often in a row."""
        tries = self._tries[kind] = self._tries.get(kind, 0) + 1
        self._until[kind] = time.monotonic() + min(LONGEST_S, FIRST_S * 2 ** (tries - 1))
        return tries

    def reset(self, kind: str) -> None:
        """Start afresh: it was taken, or given up."""
        self._tries.pop(kind, None)
        self._until.pop(kind, None)

    def retry_now(self) -> None:
        """End all waits, as an allocation has ended and others may be taken now."""
        self._until.clear()
