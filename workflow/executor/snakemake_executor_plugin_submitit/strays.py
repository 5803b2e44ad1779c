"""Allocations that the scheduler may have taken without saying so."""

import contextlib
import time
from pathlib import Path

from .ledger import Ledger
from .request import Request
from .schedulers import Scheduler

# not seen for so long though the scheduler answers: it was never taken
NEVER_TAKEN_S = 60.0


class Strays:
    """What was in them is sent again; so they run nothing, and are cancelled once they are found.

    A batch is found by its name, in the comment of its jobs.
    """

    def __init__(self, ledger: Ledger, scheduler: Scheduler) -> None:
        self._ledger = ledger
        self._scheduler = scheduler
        self._requests: dict[Path, Request] = {}
        self._missed_since: dict[Path, float] = {}

    def add(self, batch: Path, request: Request) -> None:
        """A batch of which nobody knows whether it was taken."""
        for pack in batch.glob("*/pack.json"):
            for number in self._ledger.unsettled(pack.parent):
                with contextlib.suppress(OSError):  # a full disk; it will be cancelled, too
                    self._ledger.withdraw(pack.parent, number)
        self._requests[batch] = request
        self.look()

    def look(self) -> None:
        """Cancel those that are there now; those that never come are forgotten."""
        for batch, request in list(self._requests.items()):
            jobs = self._scheduler.find(batch.name, request)
            if jobs is None:
                continue  # no answer: asked again
            if jobs:
                self._scheduler.cancel(jobs)
                self._missed_since.pop(batch, None)
                continue
            now = time.monotonic()
            if now - self._missed_since.setdefault(batch, now) >= NEVER_TAKEN_S:
                self._ledger.remove(batch)
                del self._requests[batch], self._missed_since[batch]
