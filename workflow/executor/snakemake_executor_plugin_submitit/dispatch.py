"""Submit jobs in allocations and finish them; nothing here knows of Snakemake."""

import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from .allocations import Allocation, Allocations, Limits, Listener, WantedJob
from .excluded_hosts import ExcludedHosts
from .records import JobEnd, Place, Records
from .schedulers import JobId, Listed, Scheduler, State
from .submitting import Submitter

# An allocation that the scheduler no longer knows counts as lost after this.
LOST_S = 60.0


class Dispatcher:
    """Thread-safe: jobs come from Snakemake's thread and are finished in the polling thread."""

    def __init__(
        self, *, records: Records, scheduler: Scheduler, limits: Limits, listener: Listener,
        directory: Path,
    ) -> None:  # fmt: skip
        self._records = records
        self._scheduler = scheduler
        self._limits = limits
        self._listener = listener
        self._mutex = threading.RLock()
        self._open = Allocations(most=limits.max_allocations, gpus=scheduler.gpus or 0)
        self._excluded = ExcludedHosts()
        self._submitter = Submitter(
            records=records, scheduler=scheduler, limits=limits, listener=listener,
            directory=directory, in_flight=self._open, excluded=self._excluded,
        )  # fmt: skip
        self._places: dict[str, Place] | None = None  # of jobs of earlier runs
        self._leaving: set[JobId] = set()  # cancelled jobs that may still run
        self._leaving_since_s = 0.0
        self._has_asked = False
        self._reasons_told: set[str] = set()  # why allocations wait
        self._cancelled = False
        self._answers = True

    # -- submitting -------------------------------------------------------------------------------

    def submit(self, jobs: Sequence[WantedJob]) -> None:
        """Take up jobs that an earlier run has sent, and send the others in packs."""
        with self._mutex:
            if self._places is None:
                self._places = self._records.places()
            places = {
                job.record.key: place
                for job in jobs
                if (place := self._places.pop(job.record.key, None)) is not None
            }
            listed = self._ask() if places or not self._has_asked else None
            by_folder = None if listed is None else self._by_folder(listed)
            taken_up: Counter[str] = Counter()
            for job in jobs:
                place = places.get(job.record.key)
                if place is not None and self._may_take_up(job, place, by_folder):
                    taken_up[self._take_up(job, place, by_folder or {})] += 1
                    continue
                if place is not None:
                    self._records.withdraw(place.allocation, [place.number])
                if self._limits.restarts_left(job.record.key) < 0:
                    times = self._limits.interrupted[job.record.key]
                    self._listener.failed(job, f"it was interrupted {times} times in this run", [])
                    continue
                self._listener.prepare(job)
                self._submitter.add([job])
            for job_id, count in taken_up.items():
                self._listener.say(f"re-attached to job {job_id} of an earlier run, {count} in it")
            self._cancel_orphans(listed)
            self._send()

    def _by_folder(self, listed: Iterable[Listed]) -> dict[Path, Listed]:
        """The scheduler's jobs by the folder of the allocation that each is, live ones first."""
        ended_first = sorted(listed, key=lambda each: each.state.live)
        return {self._records.folder_of(each): each for each in ended_first}

    def _may_take_up(self, job: WantedJob, place: Place, listed: dict[Path, Listed] | None) -> bool:
        """Whether a job is as an earlier run has sent it, and runs, will run, or has succeeded.

        Without an answer of the scheduler it may live, and must not be sent twice. One that waits
        for other resources than it needs now is sent anew.
        """
        if place.digest != job.record.digest:
            return False
        end = self._records.finished(place.allocation).get(place.number)
        if end is not None:
            return end.code == 0 and all(output.exists() for output in job.outputs)
        if listed is None:
            return True
        found = listed.get(place.allocation)
        if found is None or not found.state.live:
            return False
        return not found.state.waits or place.asked == job.record.asked

    def _take_up(self, job: WantedJob, place: Place, listed: dict[Path, Listed]) -> str:
        """Wait for a job where it was sent; the scheduler's id of that."""
        allocation = self._open.get(place.allocation)
        if allocation is None:
            found = listed.get(place.allocation)
            allocation = Allocation(
                folder=place.allocation, id=found.id if found else None, reattached=True
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

    def _cancel_orphans(self, listed: Sequence[Listed] | None) -> None:
        """Cancel jobs of this directory that have nothing to run.

        Nothing is sent for a while as long as one of them runs: it may hold a job's files.
        """
        if listed is None:
            return
        self._leaving &= {each.id for each in listed if each.state.live}
        found = self._records.orphans(
            (each for each in listed if each.id not in self._leaving), self._submitter.unwanted
        )
        if found and self._scheduler.cancel([each.id for each in found]):
            names = ", ".join(each.id.job for each in found)
            self._listener.say(f"cancelled job {names}: it has nothing to run any more")
            self._leaving |= {each.id for each in found if not each.state.waits}
            self._leaving_since_s = time.monotonic()

    def _send(self) -> None:
        if not self._leaving or time.monotonic() - self._leaving_since_s > LOST_S:
            self._submitter.send()

    # -- finishing --------------------------------------------------------------------------------

    def poll(self) -> None:
        """Finish what has ended and send what waits; asks the scheduler at most once."""
        with self._mutex:
            if self._cancelled:
                return
            watches = len(self._open) or self._leaving or self._submitter.unwanted
            listed = self._ask() if watches else None
            states = {each.id: each.state for each in listed or ()}
            by_folder = self._by_folder(listed or ())
            for allocation in self._open:  # one was taken up while the scheduler did not answer
                if allocation.id is None and allocation.folder in by_folder:
                    allocation.id = by_folder[allocation.folder].id
            self._cancel_orphans(listed)
            self._open.begin_poll()
            for allocation in self._open:
                self._finish(allocation)
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
                    if self._is_over(allocation, state):
                        self._finish_the_rest(allocation, state)
                if not allocation.pending:
                    self._open.close(allocation)
                    self._submitter.retry_now()
            self._send()

    def recorded(self, key: str) -> None:
        """Snakemake has recorded the end of a job: no later run takes it up."""
        if (place := self._open.held(key)) is not None:
            folder, number = place
            self._records.withdraw(folder, [number])

    def tidy(self, keep_days: float) -> None:
        """Remove records that nobody needs any more."""
        with self._mutex:
            if (listed := self._scheduler.listed()) is not None:
                self._records.tidy(listed, keep_days)

    def _finish(self, allocation: Allocation) -> None:
        """Finish the jobs whose ends are recorded.

        A job is pending until all about it has been read, so that a file system that is briefly
        unavailable does not lose it.
        """
        ends = self._records.finished(allocation.folder)
        for number in sorted(ends.keys() & allocation.pending.keys()):
            end, logs = ends[number], self._records.log_of(allocation.folder, number)
            job = allocation.pending.pop(number)
            if end.code == 0:
                self._listener.succeeded(job)
            else:
                self._open.record_failure(job, allocation)
                why = f"job {allocation.job_id}: {_describe_end(end, job)}"
                self._listener.failed(job, why, logs)

    def _finish_the_rest(self, allocation: Allocation, state: State | None) -> None:
        """Finish or send again the jobs of an ended allocation that left no end."""
        self._blame_host(allocation)
        folder = allocation.folder
        began, returned = self._records.began(folder), self._records.returned(folder)
        restarts = self._records.restarts(folder)
        # an allocation that failed before its worker ran would fail again, so its jobs fail
        never_ran = state is not None and state.failed and restarts is None
        why = f"job {allocation.job_id} is {_what_became(state)}"
        if never_ran:
            words = self._records.last_words(folder, allocation.job_id)
            if words is None:
                words = f"it has left no log; does its node see {folder.parent}?"
            why += f": {words}" if words else ""
        self._end(allocation)  # in case it lives unseen, or is about to be restarted
        # what was left for later goes behind those that had no turn
        for number, job in sorted(
            allocation.pending.items(), key=lambda item: (item[0] in returned, item[0])
        ):
            not_to_blame = number not in began or (state is not None and state.preempted)
            is_finished = self._is_finished(job)
            logs = self._records.log_of(folder, number)
            del allocation.pending[number]
            if is_finished:
                self._listener.succeeded(job)
                continue
            if not allocation.reattached:  # else it ended while nobody watched
                self._limits.interrupted[job.record.key] += 1 + (restarts or 0)
            may_restart = self._limits.restarts_left(job.record.key) >= 0
            if allocation.reattached or (not_to_blame and not never_ran and may_restart):
                self._submitter.add([job])
            else:
                self._listener.failed(job, why, logs)

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
        if allocation.pending.keys() <= self._records.withdrawn(allocation.folder):
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
        report = self._records.unusable(allocation.folder)
        if report is None:
            return
        host, why = report
        self._listener.say(f"job {allocation.job_id} could run nothing on {host}: {why}")
        if self._excluded.blame(allocation.folder, host, why):
            self._listener.say(f"{host} is excluded from now on")

    # -- the end ----------------------------------------------------------------------------------

    def _end(self, *allocations: Allocation) -> int:
        """Withdraw the pending jobs of these allocations; the number of allocations cancelled.

        A re-attached pack that also holds jobs of somebody else's run goes on with those.
        """
        ending = []
        for allocation in allocations:
            self._records.withdraw(allocation.folder, allocation.pending)
            others = self._records.unfinished(allocation.folder) - allocation.pending.keys()
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
            self._submitter.clear()
            if self._submitter.unwanted:
                self._cancel_orphans(self._ask())
            return self._end(*self._open)

    def detach(self) -> int:
        """Send nothing more and leave the rest running; returns how many allocations run on."""
        with self._mutex:
            self._cancelled = True
            self._submitter.clear()
            return len(self._open)

    def send_no_more(self) -> None:
        """Give up waiting jobs at the next poll; safe to call in a signal handler."""
        self._submitter.close()

    def report(self) -> list[str]:
        """Sentences for the user at the end of the run."""
        asked = ", ".join(f"{n} {name}" for name, n in self._scheduler.queries.items())
        sent = f"submitit: {self._submitter.allocations_sent} allocations, {asked or 'no'} calls"
        return [*self._excluded.report(), sent]


def _what_became(state: State | None) -> str:
    """The state of an ended job, and what to do about it."""
    if state is None:
        return "gone for an unknown reason"
    if state.given_up:
        return f"held: {state.reason}"
    if state.out_of_memory:
        return f"{state.word}: the job's memory limit (--mem) killed it; ask for more mem_mb"
    return f"{state.word}{state.by_whom}"


def _describe_end(end: JobEnd, job: WantedJob) -> str:
    if end.reason == "time limit":
        return f"its time limit of {job.record.limit_s / 60:g} min was reached"
    if end.reason == "memory limit":
        return "the job's memory limit (--mem) killed it; ask for more mem_mb"
    if end.code < 0:
        return f"killed by signal {-end.code}"
    return f"exit code {end.code}"
