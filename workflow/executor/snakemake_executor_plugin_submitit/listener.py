"""Who is told how wishes fare."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from .allocations import Wish


class Listener(Protocol):
    """Who wants to know how wishes fare."""

    def prepare(self, wish: Wish) -> None:
        """Called before a wish that was taken is sent anew, in the thread that called `take`."""

    def sent(self, wish: Wish, job: str) -> None:
        """The wish is in the hands of the scheduler, as part of this job."""

    def succeeded(self, wish: Wish) -> None:
        """Its command ended with 0."""

    def failed(self, wish: Wish, why: str, logs: Sequence[Path]) -> None:
        """It did not; `why` is a sentence."""

    def say(self, sentence: str) -> None:
        """Something a user should read."""
