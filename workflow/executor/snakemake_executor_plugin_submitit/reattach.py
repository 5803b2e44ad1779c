"""Re-attach to jobs that an earlier run has sent, instead of sending them twice."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .allocations import WantedJob
from .ledger import Entry, Ledger
from .request import Request
from .schedulers import Scheduler, State


class Reattachment:
    """Finds these jobs in what an earlier run has sent; asks the scheduler once for all."""

    def __init__(self, ledger: Ledger, scheduler: Scheduler, jobs: Sequence[WantedJob]) -> None:
        self._ledger = ledger
        self._scheduler = scheduler
        self._entries: dict[str, Entry] = {}
        for job in jobs:
            entry = ledger.find(job.record.key)
            if entry is not None:
                self._entries[job.record.key] = entry
        sent_for = {
            self._entries[job.record.key].allocation: job.request
            for job in jobs
            if job.record.key in self._entries
        }
        identities = {
            folder: self._identify(folder, sent_for[folder]) for folder in sorted(sent_for)
        }
        identified = {folder: i for folder, i in identities.items() if i is not None}
        states = scheduler.states(list(identified.values())) if identified else {}
        unknown = State("unknown")  # without an answer it may live, and must not be sent twice
        by_folder = {
            folder: unknown if states is None else states.get(str(identity["job"]))
            for folder, identity in identified.items()
        }
        self._alive = {
            folder: (identified[folder], state)
            for folder, state in by_folder.items()
            if state is not None and state.live
        }
        self._taken_from: set[Path] = set()  # living allocations from which jobs were withdrawn

    def find(self, job: WantedJob) -> tuple[Path, int] | None:
        """The allocation of a job and its number there; None: it must be sent (again).

        A job whose command has changed is withdrawn from its allocation, and one that waits for
        other resources than it needs now. Jobs that failed, ended without a record, or lost their
        outputs are sent again.
        """
        entry = self._entries.get(job.record.key)
        if entry is None:
            return None
        settled = self._ledger.settled(entry.allocation).get(entry.number)
        changed = entry.digest != job.record.digest
        if settled is None:
            _, state = self._alive.get(entry.allocation, (None, None))
            if state is not None:
                changed |= state.waits and entry.asked != job.record.asked
                if not changed and entry.number in self._ledger.unsettled(entry.allocation):
                    return entry.allocation, entry.number
                self._ledger.withdraw(entry.allocation, entry.number)
                self._taken_from.add(entry.allocation)
                return None
            with contextlib.suppress(OSError):  # in case it lives unseen
                self._ledger.withdraw(entry.allocation, entry.number)
            return None
        if changed or settled.code != 0 or not all(output.exists() for output in job.outputs):
            return None
        return entry.allocation, entry.number

    def cancel_emptied(self) -> list[str]:
        """Cancel allocations from which the last job was withdrawn; their ids."""
        emptied = [
            self._alive[folder][0]
            for folder in sorted(self._taken_from)
            if not self._ledger.unsettled(folder)
        ]
        if emptied:
            self._scheduler.cancel(emptied)
        return [str(identity["job"]) for identity in emptied]

    def _identify(self, folder: Path, request: Request) -> Mapping[str, Any] | None:
        """How the scheduler names an allocation, even if the run died before recording that."""
        identity = self._ledger.submitted(folder)
        if identity is not None:
            return identity
        for stray in self._scheduler.find(folder.parent.name, request) or []:
            job = str(stray["job"])
            if "_" in job and job.rpartition("_")[2] != folder.name:
                continue  # another task of the same array
            if self._ledger.has_started(folder):
                self._ledger.write_submitted(folder, stray)
                return stray
            # submitit may have died before the job's pickle had its final name: it could not start
            self._scheduler.cancel([stray])
        return None
