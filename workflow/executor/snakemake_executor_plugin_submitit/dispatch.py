"""Submit jobs in allocations and settle them; nothing here knows of Snakemake."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from .allocations import Allocation, Allocations, Limits, Listener, WantedJob
from .ledger import JobEnd, Ledger
from .outbox import Outbox
from .reattach import Reattachment
from .schedulers import Scheduler, State
from .unfit import UnfitHosts

# An allocation that the scheduler no longer knows counts as lost after this.
LOST_S = 60.0
# How often a job that never began is sent again without that counting as an attempt.
MOST_FREE_RESENDS = 3


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
        self._free_resends: Counter[str] = Counter()  # by job
        self._reasons_told: set[str] = set()  # why allocations wait
        self._cancelled = False
        self._answers = True

    @property
    def allocations_sent(self) -> int:
        """How many allocations were sent."""
        return self._outbox.allocations_sent

    # -- submitting -------------------------------------------------------------------------------

    def submit(self, jobs: Sequence[WantedJob]) -> None:
        """Re-attach to jobs that an earlier run has sent, and send the others in packs."""
        with self._mutex:
            earlier = Reattachment(self._ledger, self._scheduler, jobs)
            reattached: Counter[str] = Counter()
            for job in jobs:
                place = earlier.find(job)
                if place is None:
                    self._listener.prepare(job)
                    self._outbox.add([job])
                    continue
                folder, number = place
                allocation = self._open.get(folder)
                if allocation is None:
                    allocation = Allocation(
                        folder=folder, identity=self._ledger.submitted(folder), reattached=True
                    )
                    self._open.add(allocation)
                allocation.pending[number] = job
                self._listener.sent(job, allocation.job_id)
                reattached[allocation.job_id] += 1
            for job_id, count in reattached.items():
                self._listener.say(f"re-attached to job {job_id} of an earlier run, {count} in it")
            if emptied := earlier.cancel_emptied():
                jobs_left = ", ".join(emptied)
                self._listener.say(f"cancelled job {jobs_left}: what it holds is sent as it is now")
            self._outbox.send()

    # -- settling ---------------------------------------------------------------------------------

    def poll(self) -> None:
        """Settle what has ended and send what waits; asks the scheduler at most once."""
        with self._mutex:
            if self._cancelled:
                return
            identities = [a.identity for a in self._open if a.identity is not None]
            states = self._scheduler.states(identities) if identities else {}
            if (states is not None) != self._answers:
                self._answers = states is not None
                self._listener.say(
                    "the scheduler answers again"
                    if self._answers
                    else "the scheduler does not answer; jobs run on, and it will be asked again"
                )
            self._outbox.cancel_strays()
            self._open.begin_poll()
            for allocation in self._open:
                self._settle(allocation)
                if allocation.pending and allocation.identity is not None and states is not None:
                    self._settle_if_over(allocation, states.get(allocation.job_id))
                if not allocation.pending:
                    self._open.close(allocation)
                    self._outbox.retry_now()
            self._outbox.send()

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
        began = self._ledger.began(allocation.folder)
        started = self._ledger.has_started(allocation.folder)
        # an allocation that failed before its worker ran would fail again, so its jobs fail
        never_ran = state is not None and state.failed and not started
        last_words = (
            self._ledger.last_words(allocation.folder, allocation.job_id) if never_ran else ""
        )
        word = state.word if state is not None else "gone for an unknown reason"
        why = f"job {allocation.job_id} is {word}" + (f": {last_words}" if last_words else "")
        self._end(allocation)  # in case it lives unseen, or is about to be restarted
        for number, job in sorted(allocation.pending.items()):
            not_to_blame = number not in began or (state is not None and state.preempted)
            is_finished = self._is_finished(job)
            logs = self._ledger.log_of(allocation.folder, number)
            del allocation.pending[number]
            if is_finished:
                self._listener.succeeded(job)
            elif (
                allocation.reattached  # it ended while nobody watched: no attempt of this run
                or (not_to_blame and not never_ran and self._may_resend_free(job))
            ):
                self._outbox.add([job])
            else:
                self._listener.failed(job, why, logs)

    def _is_over(self, allocation: Allocation, state: State | None) -> bool:
        """Whether it has ended long enough ago for all that it wrote to be visible here."""
        if state is not None and state.live:
            allocation.ended_s = None
            kind = state.reason.partition(",")[0]  # a list of nodes may follow, which changes
            if state.stuck and kind not in self._reasons_told:
                self._reasons_told.add(kind)
                self._listener.say(f"job {allocation.job_id} waits: {state.reason}")
            return False
        now = time.monotonic()
        if allocation.ended_s is None:
            allocation.ended_s = now
        is_certain = state is not None or not self._scheduler.forgets_jobs
        return now - allocation.ended_s >= (self._limits.latency_s if is_certain else LOST_S)

    def _is_finished(self, job: WantedJob) -> bool:
        """Whether all outputs exist, in a workflow where that means that they are finished."""
        exist = bool(job.outputs) and all(output.exists() for output in job.outputs)
        return self._limits.outputs_are_complete and exist

    def _may_resend_free(self, job: WantedJob) -> bool:
        """Whether a job that is not to blame may be sent again without counting an attempt."""
        self._free_resends[job.record.key] += 1
        return self._free_resends[job.record.key] <= MOST_FREE_RESENDS

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
            if (
                allocation.identity is not None
                and not self._ledger.unsettled(allocation.folder) - mine
            ):
                ending.append(dict(allocation.identity))
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
            self._outbox.cancel_strays()
            count = self._end(*self._open)
            for allocation in self._open:
                for job in allocation.pending.values():
                    with contextlib.suppress(OSError):  # the next run finds it withdrawn
                        self._ledger.forget(job.record.key)
            return count

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


def _describe_end(end: JobEnd, job: WantedJob) -> str:
    if end.reason == "time limit":
        return f"its time limit of {job.record.limit_s / 60:g} min was reached"
    if end.code < 0:
        return f"killed by signal {-end.code}"
    return f"exit code {end.code}"
