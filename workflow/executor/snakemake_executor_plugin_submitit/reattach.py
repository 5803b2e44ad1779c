"""Jobs that an earlier run has sent are taken up again instead of being sent twice."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .allocations import Wish
from .ledger import Entry, Ledger
from .request import Request
from .schedulers import Scheduler


class Reattachment:
    """What became of these wishes in an earlier run; asks the scheduler once for all of them."""

    def __init__(self, ledger: Ledger, scheduler: Scheduler, wishes: Sequence[Wish]) -> None:
        self._ledger = ledger
        self._scheduler = scheduler
        self._entries: dict[str, Entry] = {}
        for wish in wishes:
            entry = ledger.find(wish.item.key)
            if entry is not None:
                self._entries[wish.item.key] = entry
        sent_for = {
            self._entries[wish.item.key].allocation: wish.request
            for wish in wishes
            if wish.item.key in self._entries
        }
        identities = {
            folder: self._identify(folder, sent_for[folder]) for folder in sorted(sent_for)
        }
        identified = {folder: i for folder, i in identities.items() if i is not None}
        states = scheduler.states(list(identified.values())) if identified else {}
        self._alive = {
            folder
            for folder, identity in identified.items()
            # without an answer it may be alive, and must not be sent twice
            if states is None
            or ((state := states.get(str(identity["job"]))) is not None and state.live)
        }

    def place_of(self, wish: Wish) -> tuple[Path, int] | None:
        """The allocation and the number of a wish there; None: it must be sent (again).

        A job whose command has changed since is withdrawn from its allocation. One that failed, or
        ended without a word, or whose outputs are gone, is not taken up.
        """
        entry = self._entries.get(wish.item.key)
        if entry is None:
            return None
        settled = self._ledger.settled(entry.allocation).get(entry.number)
        lives = entry.allocation in self._alive
        if entry.digest != wish.item.digest:
            if settled is None and lives:
                self._ledger.withdraw(entry.allocation, entry.number)
            return None
        if settled is None:
            if lives and entry.number in self._ledger.unsettled(entry.allocation):
                return entry.allocation, entry.number
            with contextlib.suppress(OSError):  # if it lives unseen after all
                self._ledger.withdraw(entry.allocation, entry.number)
            return None
        if settled.code != 0 or not all(output.exists() for output in wish.outputs):
            return None
        return entry.allocation, entry.number

    def _identify(self, folder: Path, request: Request) -> Mapping[str, Any] | None:
        """What the scheduler calls an allocation, even if we died before that was written down."""
        identity = self._ledger.submitted(folder)
        if identity is not None:
            return identity
        for stray in self._scheduler.find(folder.parent.name, request) or []:
            job = str(stray["job"])
            if "_" in job and job.rpartition("_")[2] != folder.name:
                continue  # another task of the same array
            if self._ledger.started(folder):
                self._ledger.write_submitted(folder, stray)
                return stray
            # submitit may have died before the job's pickle had its final name: it could not start
            self._scheduler.cancel([stray])
        return None
