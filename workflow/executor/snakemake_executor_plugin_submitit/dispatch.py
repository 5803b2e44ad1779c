"""Submit jobs in allocations and finish them; nothing here knows of Snakemake."""

import threading
import time
from collections import Counter
from collections.abc import Sequence

from .records import JobEnd, Place, Records, WantedJob
from .schedulers import Listed, Scheduler, State
from .settings import ExecutorSettings
from .submitting import Allocation, Allocations, Listener, Submitter

# An allocation that the scheduler no longer knows counts as lost after this.
LOST_S = 60.0
_ASK_AGAIN_S = 5.0


class Dispatcher:
    """Thread-safe: jobs come from Snakemake's thread and are finished in the polling thread."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        settings: ExecutorSettings,
        listener: Listener,
        latency_s: float = 5.0,
        outputs_are_complete: bool = False,
    ) -> None:
        """A file written elsewhere is visible after `latency_s`.

        With `outputs_are_complete`, every output that exists counts as finished.
        """
        self._records = Records()
        self._scheduler = scheduler
        self._listener = listener
        self._latency_s = latency_s
        self._outputs_are_complete = outputs_are_complete
        self._mutex = threading.RLock()
        self._open = Allocations(settings.max_restarts)
        self._submitter = Submitter(
            records=self._records, scheduler=scheduler, settings=settings, listener=listener,
            in_flight=self._open, outputs_are_complete=outputs_are_complete,
        )  # fmt: skip
        self._places: dict[str, Place] | None = None  # of jobs of earlier runs
        self._leaving: set[str] = set()  # cancelled jobs that may still run
        self._leaving_since_s = 0.0
        self._reasons_told: set[str] = set()  # why allocations wait
        self._cancelled = False
        self._answers = True

    # -- submitting -------------------------------------------------------------------------------

    def submit(self, jobs: Sequence[WantedJob]) -> None:
        """Take up jobs that an earlier run has sent, and send the others in packs.

        Waits for an answer of the scheduler, without which a job might be sent twice.
        """
        listed: Sequence[Listed] = []
        if self._places is None or any(job.key in self._places for job in jobs):
            while (answer := self._ask()) is None:
                time.sleep(_ASK_AGAIN_S)
            listed = answer
        with self._mutex:
            if self._places is None:
                self._places = self._records.places()
            # by batch, live ones last
            living = {each.batch: each for each in sorted(listed, key=lambda each: each.state.live)}
            taken_up: Counter[str] = Counter()
            for job in jobs:
                place = self._places.pop(job.key, None)
                if place is not None:
                    found = living.get(place.batch.name)
                    if self._may_take_up(job, place, found):
                        taken_up[self._take_up(job, place, found)] += 1
                        continue
                    self._records.withdraw(place.batch, [place.number])
                if self._open.restarts_left(job) < 0:
                    times = self._open.interrupted[job.key]
                    self._listener.failed(job, f"it was interrupted {times} times in this run", [])
                    continue
                self._listener.prepare(job)
                self._submitter.waiting.append(job)
            for job_id, count in taken_up.items():
                which = job_id or "(ended)"
                self._listener.say(f"re-attached to job {which} of an earlier run, {count} in it")
            self._cancel_orphans(listed)
            self._send()

    def _may_take_up(self, job: WantedJob, place: Place, found: Listed | None) -> bool:
        """Whether a job is as an earlier run has sent it, and runs, will run, or has succeeded.

        One that waits for other resources than it needs now is sent anew.
        """
        if place.item["digest"] != job.digest:
            return False
        end = self._records.finished(place.batch).get(place.number)
        if end is not None:
            return end.code == 0 and job.outputs_exist()
        if found is None or not found.state.live:
            return False
        return not found.state.waits or place.item["asked"] == job.asked

    def _take_up(self, job: WantedJob, place: Place, found: Listed | None) -> str:
        """Wait for a job where it was sent; the scheduler's id of that."""
        allocation = self._open.get(place.batch) or Allocation(
            batch=place.batch, id=found.id if found else "", reattached=True
        )
        self._open.hold(allocation, place.number, job)
        self._listener.sent(job, allocation.id)
        return allocation.id

    def _ask(self) -> list[Listed] | None:
        """The jobs that the scheduler lists; None if it does not answer, which is said once."""
        listed = self._scheduler.listed()
        if (listed is not None) != self._answers:
            self._answers = listed is not None
            self._listener.say(
                "the scheduler answers again"
                if self._answers
                else "the scheduler does not answer; jobs run on, and it will be asked again"
            )
        return listed

    def _cancel_orphans(self, listed: Sequence[Listed]) -> None:
        """Cancel jobs of this directory that have nothing to run.

        Nothing is sent for a while as long as one of them runs: it may hold a job's files.
        """
        found = [
            each
            for each in listed
            if each.id not in self._leaving and self._records.is_orphan(each)
        ]
        if found and self._scheduler.cancel([each.id for each in found]):
            names = ", ".join(each.id for each in found)
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
            for allocation in list(self._open.values()):
                if not allocation.pending:
                    del self._open[allocation.batch]
            watches = self._open or self._leaving or self._submitter.waiting
            listed = self._ask() if watches else []
            for allocation in self._open.live():
                self._finish(allocation)
            if listed is not None:
                self._leaving &= {each.id for each in listed if each.state.live}
                self._cancel_orphans(listed)
                states = {each.id: each.state for each in listed}
                live = {name for name, state in states.items() if state.live}
                ended = [each.id for each in self._open.live() if each.id not in live]
                states |= self._scheduler.accounted(ended) if ended else {}
                for allocation in self._open.live():
                    if self._is_over(allocation, states.get(allocation.id)):
                        self._finish_the_rest(allocation, states.get(allocation.id))
            if len(self._open.live()) < len(self._open):
                self._submitter.retry_now()
            self._send()

    def recorded(self, key: str) -> None:
        """Snakemake has recorded the end of a job: no later run takes it up."""
        if (place := self._open.last_place.get(key)) is not None:
            batch, number = place
            self._records.withdraw(batch, [number])

    def tidy(self) -> None:
        """Remove records that nobody needs any more."""
        with self._mutex:
            if (listed := self._scheduler.listed()) is not None:
                self._records.tidy(listed)

    def _finish(self, allocation: Allocation) -> None:
        """Finish the jobs whose ends are recorded.

        A job is pending until all about it has been read, so that a file system that is briefly
        unavailable does not lose it.
        """
        ends = self._records.finished(allocation.batch)
        for number in sorted(ends.keys() & allocation.pending.keys()):
            end, logs = ends[number], self._records.log_of(allocation.batch, number)
            job = allocation.pending.pop(number)
            if end.code == 0:
                self._listener.succeeded(job)
            else:
                self._listener.failed(job, f"job {allocation.id}: {_describe_end(end, job)}", logs)

    def _finish_the_rest(self, allocation: Allocation, state: State | None) -> None:
        """Finish or send again the jobs of an ended allocation that left no end."""
        self._blame_host(allocation)
        batch = allocation.batch
        began = self._records.marked(batch, "running.json")
        returned = self._records.marked(batch, "returned")
        started = self._records.read(batch, "started.json")
        # an allocation that failed before its worker ran would fail again, so its jobs fail
        never_ran = state is not None and state.failed and started is None
        why = f"job {allocation.id} is {state.text if state else 'gone for an unknown reason'}"
        if never_ran:
            words = self._records.last_words(batch)
            if words is None:
                words = f"it has left no log; does its node see {batch}?"
            why += f": {words}" if words else ""
        self._end(allocation)  # in case it lives unseen, or is about to be restarted
        # what was left for later goes behind those that had no turn
        for number, job in sorted(
            allocation.pending.items(), key=lambda item: (item[0] in returned, item[0])
        ):
            not_to_blame = number not in began or (state is not None and state.preempted)
            is_finished = self._outputs_are_complete and job.outputs and job.outputs_exist()
            logs = self._records.log_of(batch, number)
            del allocation.pending[number]
            if is_finished:
                self._listener.succeeded(job)
                continue
            if not allocation.reattached:  # else it ended while nobody watched
                self._open.interrupted[job.key] += 1 + (started or {}).get("restarts", 0)
            may_restart = self._open.restarts_left(job) >= 0
            if allocation.reattached or (not_to_blame and not never_ran and may_restart):
                self._open.last_place.pop(job.key)  # it has not failed there
                self._submitter.waiting.append(job)
            else:
                self._listener.failed(job, why, logs)

    def _is_over(self, allocation: Allocation, state: State | None) -> bool:
        """Whether it has ended long enough ago for all that it wrote to be visible here."""
        if state is not None and state.given_up:
            self._listener.say(f"job {allocation.id} could not be started: {state.reason}")
            return True
        if state is not None and state.live:
            allocation.ended_s = None
            kind = state.reason.partition(",")[0]  # a list of nodes may follow, which changes
            if state.stuck and kind not in self._reasons_told:
                self._reasons_told.add(kind)
                self._listener.say(f"job {allocation.id} waits: {state.reason}")
            return False
        if allocation.pending.keys() <= self._records.marked(allocation.batch, "withdrawn"):
            return True  # somebody has stopped it for good
        now = time.monotonic()
        if allocation.ended_s is None:
            allocation.ended_s = now
        # a scheduler may not list a job that lives
        return now - allocation.ended_s >= (LOST_S if state is None else self._latency_s)

    def _blame_host(self, allocation: Allocation) -> None:
        """Count a failure of the host on which the allocation could run nothing."""
        if (report := self._records.read(allocation.batch, "unusable.json")) is None:
            return
        host, why = report["host"], report["why"]
        self._listener.say(f"job {allocation.id} could run nothing on {host}: {why}")
        before = self._submitter.excluded
        self._submitter.unusable.setdefault(host, []).append(why)
        if self._submitter.excluded != before:
            self._listener.say(f"{host} is excluded from now on")

    # -- the end ----------------------------------------------------------------------------------

    def _end(self, *allocations: Allocation) -> int:
        """Withdraw the pending jobs of these allocations; the number of allocations cancelled.

        A re-attached pack that also holds jobs of somebody else's run goes on with those.
        """
        ending = []
        for allocation in allocations:
            self._records.withdraw(allocation.batch, allocation.pending)
            others = self._records.unfinished(allocation.batch) - allocation.pending.keys()
            if allocation.id and not others:
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
            self._submitter.waiting.clear()
            self._cancel_orphans(self._scheduler.listed() or [])
            return self._end(*self._open.live())

    def detach(self) -> int:
        """Send nothing more and leave the rest running; returns how many allocations run on."""
        with self._mutex:
            self._cancelled = True
            self._submitter.waiting.clear()
            return len(self._open.live())

    def send_no_more(self) -> None:
        """Give up waiting jobs at the next poll; safe to call in a signal handler."""
        self._submitter.close()

    def report(self) -> list[str]:
        """Sentences for the user at the end of the run."""
        unusable = self._submitter.unusable
        excluded = [
            f"{host} was excluded after {len(unusable[host])} failures of its own: "
            f"{unusable[host][-1]}"
            for host in self._submitter.excluded
        ]
        asked = ", ".join(f"{n} {name}" for name, n in self._scheduler.queries.items())
        return [*excluded, f"submitit: {self._submitter.sent} allocations, {asked or 'no'} calls"]


def _describe_end(end: JobEnd, job: WantedJob) -> str:
    if end.reason == "time limit":
        return f"its time limit of {job.limit_s / 60:g} min was reached"
    if end.reason == "memory limit":
        return "the job's memory limit (--mem) killed it; ask for more mem_mb"
    if end.code < 0:
        return f"killed by signal {-end.code}"
    return f"exit code {end.code}"
