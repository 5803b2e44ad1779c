"""Submit jobs in allocations and settle them; nothing here knows of Snakemake."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from .allocations import Allocation, Allocations, Limits, Listener, WantedJob
from .ledger import JobEnd, Ledger, Place
from .outbox import Outbox
from .schedulers import JobId, Listed, Scheduler, State
from .unfit import UnfitHosts

# An allocation that the scheduler no longer knows counts as lost after this.
LOST_S = 60.0


class Dispatcher:
    """Thread-safe: jobs come from Snakemake's thread and are settled in the polling thread."""

    def __init__(
        self, *, ledger: Ledger, scheduler: Scheduler, limits: Limits, listener: Listener,
        directory: Path,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._scheduler = scheduler
        self._limits = limits
        self._listener = listener
        self._mutex = threading.RLock()
        self._open = Allocations(most=limits.max_allocations, gpus=scheduler.gpus or 0)
        self._unfit = UnfitHosts()
        self._outbox = Outbox(
            ledger=ledger, scheduler=scheduler, limits=limits, listener=listener,
            directory=directory, in_flight=self._open, unfit=self._unfit,
        )  # fmt: skip
        self._places: dict[str, Place] | None = None  # of jobs of earlier runs
        self._leaving: set[JobId] = set()  # cancelled jobs that may still run
        self._leaving_since_s = 0.0
        self._has_asked = False
        self._reasons_told: set[str] = set()  # why allocations wait
        self._cancelled = False
        self._answers = True

    @property
    def allocations_sent(self) -> int:
        """How many allocations were sent."""
        return self._outbox.allocations_sent

    # -- submitting -------------------------------------------------------------------------------

    def submit(self, jobs: Sequence[WantedJob]) -> None:
        """Take up jobs that an earlier run has sent, and send the others in packs."""
        with self._mutex:
            if self._places is None:
                self._places = self._ledger.places()
            places = {
                job.record.key: place
                for job in jobs
                if (place := self._places.pop(job.record.key, None)) is not None
            }
            listed = self._ask() if places or not self._has_asked else None
            taken_up: Counter[str] = Counter()
            for job in jobs:
                place = places.get(job.record.key)
                if place is not None and self._takes_up(job, place, listed):
                    taken_up[self._attach(job, place, listed)] += 1
                    continue
                if place is not None:
                    with contextlib.suppress(OSError):  # a full disk; it is cancelled as well
                        self._ledger.withdraw(place.allocation, place.number)
                if self._limits.restarts_left(job.record.key) < 0:
                    times = self._limits.interrupted[job.record.key]
                    self._listener.failed(job, f"it was interrupted {times} times in this run", [])
                    continue
                self._listener.prepare(job)
                self._outbox.add([job])
            for job_id, count in taken_up.items():
                self._listener.say(f"re-attached to job {job_id} of an earlier run, {count} in it")
            self._cancel_leftovers(listed)
            self._send()

    def _takes_up(self, job: WantedJob, place: Place, listed: Sequence[Listed] | None) -> bool:
        """Whether a job is as an earlier run has sent it, and runs, will run, or has succeeded.

        Without an answer of the scheduler it may live, and must not be sent twice. One that waits
        for other resources than it needs now is sent anew.
        """
        settled = self._ledger.settled(place.allocation).get(place.number)
        if place.digest != job.record.digest:
            return False
        if settled is not None:
            return settled.code == 0 and all(output.exists() for output in job.outputs)
        if listed is None:
            return True
        state = next((each.state for each in listed if _folder_of(each) == _key(place)), None)
        waits_for_other = state is not None and state.waits and place.asked != job.record.asked
        return state is not None and state.live and not waits_for_other

    def _attach(self, job: WantedJob, place: Place, listed: Sequence[Listed] | None) -> str:
        allocation = self._open.get(place.allocation)
        if allocation is None:
            ids = [each.id for each in listed or () if _folder_of(each) == _key(place)]
            allocation = Allocation(
                folder=place.allocation, id=ids[0] if ids else None, reattached=True
            )
            self._open.add(allocation)
        self._open.hold(allocation, place.number, job)
        self._listener.sent(job, allocation.job_id)
        return allocation.job_id

    def _ask(self) -> list[Listed] | None:
        """The jobs that the scheduler lists; None if it does not answer, which is said once."""
        self._has_asked = True
        listed = self._scheduler.listed()
        if (listed is not None) != self._answers:
            self._answers = listed is not None
            self._listener.say(
                "the scheduler answers again"
                if self._answers
                else "the scheduler does not answer; jobs run on, and it will be asked again"
            )
        return listed

    def _cancel_leftovers(self, listed: Sequence[Listed] | None) -> None:
        """Cancel jobs of this directory that have nothing to run.

        Nothing is sent for a while as long as one of them runs: it may hold a job's files.
        """
        if listed is None:
            return
        self._leaving &= {each.id for each in listed if each.state.live}
        mine = {allocation.id for allocation in self._open}
        found = self._ledger.leftovers(
            (each for each in listed if each.id not in mine | self._leaving), self._outbox.unwanted
        )
        if found and self._scheduler.cancel([each.id for each in found]):
            names = ", ".join(each.id.job for each in found)
            self._listener.say(f"cancelled job {names}: it has nothing to run any more")
            self._leaving |= {each.id for each in found if not each.state.waits}
            self._leaving_since_s = time.monotonic()

    def _send(self) -> None:
        if not self._leaving or time.monotonic() - self._leaving_since_s > LOST_S:
            self._outbox.send()

    # -- settling ---------------------------------------------------------------------------------

    def poll(self) -> None:
        """Settle what has ended and send what waits; asks the scheduler at most once."""
        with self._mutex:
            if self._cancelled:
                return
            watches = len(self._open) or self._leaving or self._outbox.unwanted
            listed = self._ask() if watches else None
            states = {each.id: each.state for each in listed or ()}
            self._name_allocations(listed)
            self._cancel_leftovers(listed)
            self._open.begin_poll()
            for allocation in self._open:
                self._settle(allocation)
            ended = [
                allocation.id
                for allocation in self._open
                if allocation.pending and allocation.id is not None
                if (state := states.get(allocation.id)) is None or not state.live
            ]
            if listed is not None and ended:
                known = self._scheduler.accounted(ended)
                states |= {each: known[each.job] for each in ended if each.job in known}
            for allocation in self._open:
                if allocation.pending and listed is not None:
                    state = states.get(allocation.id) if allocation.id is not None else None
                    self._settle_if_over(allocation, state)
                if not allocation.pending:
                    self._open.close(allocation)
                    self._outbox.retry_now()
            self._send()

    def _name_allocations(self, listed: Sequence[Listed] | None) -> None:
        """Fill in ids of allocations that were taken up while the scheduler did not answer."""
        for allocation in self._open:
            for each in listed or ():
                key = allocation.folder.parent.name, int(allocation.folder.name)
                if allocation.id is None and _folder_of(each) == key:
                    allocation.id = each.id

    def recorded(self, key: str) -> None:
        """Snakemake has recorded the end of a job: no later run takes it up."""
        if (place := self._open.held(key)) is not None:
            with contextlib.suppress(OSError):  # a full disk: it is looked at once more
                self._ledger.withdraw(*place)

    def tidy(self, keep_days: float) -> None:
        """Remove records that nobody needs any more."""
        with self._mutex:
            if (listed := self._scheduler.listed()) is not None:
                self._ledger.tidy(listed, keep_days)

    def _settle(self, allocation: Allocation) -> None:
        """Settle the jobs whose ends are recorded.

        A job is pending until all about it has been read, so that a file system that is briefly
        unavailable does not lose it.
        """
        settled = self._ledger.settled(allocation.folder)
        for number in sorted(settled.keys() & allocation.pending.keys()):
            end, logs = settled[number], self._ledger.log_of(allocation.folder, number)
            job = allocation.pending.pop(number)
            if end.code == 0:
                self._listener.succeeded(job)
            else:
                self._open.record_failure(job, allocation)
                self._listener.failed(
                    job, f"job {allocation.job_id}: {_describe_end(end, job)}", logs
                )

    def _settle_if_over(self, allocation: Allocation, state: State | None) -> None:
        """Once an allocation is over, settle or send again the jobs without a recorded end."""
        if not self._is_over(allocation, state):
            return
        self._blame_host(allocation)
        folder = allocation.folder
        began, returned = self._ledger.began(folder), self._ledger.returned(folder)
        restarts = self._ledger.restarts(folder)
        # an allocation that failed before its worker ran would fail again, so its jobs fail
        never_ran = state is not None and state.failed and restarts is None
        why = f"job {allocation.job_id} is {self._what_became(state)}"
        if never_ran:
            words = self._ledger.last_words(folder, allocation.job_id)
            why += f": {words}" if words else ""
            if words is None:
                why += f": it has left no log; does its node see {folder.parent}?"
        self._end(allocation)  # in case it lives unseen, or is about to be restarted
        # what was left for later goes behind those that had no turn
        for number, job in sorted(
            allocation.pending.items(), key=lambda item: (item[0] in returned, item[0])
        ):
            not_to_blame = number not in began or (state is not None and state.preempted)
            is_finished = self._is_finished(job)
            logs = self._ledger.log_of(folder, number)
            del allocation.pending[number]
            if is_finished:
                self._listener.succeeded(job)
                continue
            if not allocation.reattached:  # else it ended while nobody watched
                self._limits.interrupted[job.record.key] += 1 + (restarts or 0)
            may_restart = self._limits.restarts_left(job.record.key) >= 0
            if allocation.reattached or (not_to_blame and not never_ran and may_restart):
                self._outbox.add([job])
            else:
                self._listener.failed(job, why, logs)

    def _what_became(self, state: State | None) -> str:
        """The state of an ended job, and what to do about it."""
        if state is None:
            return "gone for an unknown reason"
        if state.given_up:
            return f"held: {state.reason}"
        if state.out_of_memory:
            return f"{state.word}: the job's memory limit (--mem) killed it; ask for more mem_mb"
        return f"{state.word}{state.by_whom}"

    def _is_over(self, allocation: Allocation, state: State | None) -> bool:
        """Whether it has ended long enough ago for all that it wrote to be visible here."""
        if state is not None and state.given_up:
            self._listener.say(f"job {allocation.job_id} could not be started: {state.reason}")
            return True
        if state is not None and state.live:
            allocation.ended_s = None
            kind = state.reason.partition(",")[0]  # a list of nodes may follow, which changes
            if state.stuck and kind not in self._reasons_told:
                self._reasons_told.add(kind)
                self._listener.say(f"job {allocation.job_id} waits: {state.reason}")
            return False
        if allocation.pending.keys() <= self._ledger.withdrawn(allocation.folder):
            return True  # somebody has stopped it for good
        now = time.monotonic()
        if allocation.ended_s is None:
            allocation.ended_s = now
        is_certain = state is not None or not self._scheduler.forgets_jobs
        return now - allocation.ended_s >= (self._limits.latency_s if is_certain else LOST_S)

    def _is_finished(self, job: WantedJob) -> bool:
        """Whether all outputs exist, in a workflow where that means that they are finished."""
        exist = bool(job.outputs) and all(output.exists() for output in job.outputs)
        return self._limits.outputs_are_complete and exist

    def _blame_host(self, allocation: Allocation) -> None:
        unfit = self._ledger.unfit(allocation.folder)
        if unfit is None:
            return
        host, why = unfit
        self._listener.say(f"job {allocation.job_id} could run nothing on {host}: {why}")
        if self._unfit.blame(allocation.folder, host, why):
            self._listener.say(f"{host} is excluded from now on")

    # -- the end ----------------------------------------------------------------------------------

    def _end(self, *allocations: Allocation) -> int:
        """Withdraw the pending jobs of these allocations; the number of allocations cancelled.

        A re-attached pack that also holds jobs of somebody else's run goes on with those.
        """
        ending = []
        for allocation in allocations:
            mine = set(allocation.pending)
            for number in mine:
                with contextlib.suppress(OSError):  # a full disk; it is also cancelled
                    self._ledger.withdraw(allocation.folder, number)
            others = self._ledger.unsettled(allocation.folder) - mine
            if allocation.id is not None and not others:
                ending.append(allocation.id)
        if ending and not self._scheduler.cancel(ending):
            self._listener.say(
                f"the scheduler does not answer: {len(ending)} allocations were not cancelled; "
                "they run nothing more, as their jobs are withdrawn"
            )
            return 0
        return len(ending)

    def cancel(self) -> int:
        """End every pending job; returns how many allocations were cancelled."""
        with self._mutex:
            self._cancelled = True
            self._outbox.clear()
            if self._outbox.unwanted:
                self._cancel_leftovers(self._ask())
            return self._end(*self._open)

    def detach(self) -> int:
        """Send nothing more and leave the rest running; returns how many allocations run on."""
        with self._mutex:
            self._cancelled = True
            self._outbox.clear()
            return len(self._open)

    def send_no_more(self) -> None:
        """Give up waiting jobs at the next poll; safe to call in a signal handler."""
        self._outbox.close()

    def report(self) -> list[str]:
        """Sentences for the user at the end of the run."""
        return self._unfit.report()


def _folder_of(listed: Listed) -> tuple[str, int]:
    """The names of the batch and of the allocation that a listed job is."""
    return listed.batch, listed.number


def _key(place: Place) -> tuple[str, int]:
    """The same of a place."""
    return place.allocation.parent.name, int(place.allocation.name)


def _describe_end(end: JobEnd, job: WantedJob) -> str:
    if end.reason == "time limit":
        return f"its time limit of {job.record.limit_s / 60:g} min was reached"
    if end.reason == "memory limit":
        return "the job's memory limit (--mem) killed it; ask for more mem_mb"
    if end.code < 0:
        return f"killed by signal {-end.code}"
    return f"exit code {end.code}"
