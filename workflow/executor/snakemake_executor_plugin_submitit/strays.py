"""Allocations that the scheduler may have taken without an answer."""

import contextlib
import time
from pathlib import Path

from .ledger import Ledger
from .request import Request
from .schedulers import Scheduler

# Not seen for so long although the scheduler answers: it was never taken.
NEVER_TAKEN_S = 60.0


class Strays:
    """Cancels such allocations when they appear; their jobs are withdrawn, as they are sent again.

    A batch is found by its name in the comment of its jobs.
    """

    def __init__(self, ledger: Ledger, scheduler: Scheduler) -> None:
        self._ledger = ledger
        self._scheduler = scheduler
        self._requests: dict[Path, Request] = {}
        self._missed_since: dict[Path, float] = {}

    def add(self, batch: Path, request: Request) -> None:
        """Watch for a batch that may have been taken."""
        for pack in batch.glob("*/pack.json"):
            for number in self._ledger.unsettled(pack.parent):
                with contextlib.suppress(OSError):  # a full disk; it is also cancelled
                    self._ledger.withdraw(pack.parent, number)
        self._requests[batch] = request
        self.cancel_found()

    def cancel_found(self) -> None:
        """Cancel those that have appeared; forget those that never do."""
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
