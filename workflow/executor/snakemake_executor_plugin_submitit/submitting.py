"""Allocations in flight, and how jobs that wait become such."""

import dataclasses
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from .records import Records, WantedJob
from .request import Request
from .schedulers import SENT_FROM, Refused, Scheduler
from .settings import ExecutorSettings

# A request that was not taken is sent again after so long, then after twice as long, and so on.
_FIRST_S, _LONGEST_S = 5.0, 300.0
# An unknown answer of the scheduler becomes final after this many in a row, about five minutes.
_MOST_TRIES = 7
# One failure of a host may be the job's fault; two are the host's.
_TOO_MANY = 2

Job = TypeVar("Job")


@dataclass(slots=True, kw_only=True, eq=False)
class Allocation:
    """One job of the scheduler, and the jobs of its pack that have not finished, by number.

    `ended_s` is the monotonic time at which it was first seen to have ended, None while it lives.
    """

    batch: Path
    id: str  # of the scheduler's job; "" if that has ended long ago
    pending: dict[int, WantedJob] = field(default_factory=dict)
    reattached: bool = False
    ended_s: float | None = None


class Allocations(dict[Path, Allocation]):
    """Allocations in flight, by their batch, and the fate of jobs in this run.

    One that has ended stays until the next poll begins, so that jobs which failed in it are sent
    again together.
    """

    def __init__(self, restarts: int) -> None:
        """Restarts: how often a job may be started again in a run, whatever interrupted it."""
        super().__init__()
        self.interrupted: Counter[str] = Counter()  # so often it was, by job
        self.last_place: dict[str, tuple[Path, int]] = {}  # by job
        self._restarts = restarts

    def hold(self, allocation: Allocation, number: int, job: WantedJob) -> None:
        """Note that an allocation holds a job, by its number in the pack."""
        self[allocation.batch] = allocation
        allocation.pending[number] = job
        self.last_place[job.key] = allocation.batch, number

    def live(self) -> list[Allocation]:
        """Those that hold a job which has not finished."""
        return [allocation for allocation in self.values() if allocation.pending]

    def restarts_left(self, job: WantedJob) -> int:
        """How often a job may still be started again; negative: never more."""
        return self._restarts - self.interrupted[job.key]


class Listener(Protocol):
    """Is told how jobs fare."""

    def prepare(self, job: WantedJob) -> None:
        """Called before a job is sent anew, in the thread that called `submit`."""

    def sent(self, job: WantedJob, job_id: str) -> None:
        """The scheduler has taken the job, as part of its job `job_id`."""

    def succeeded(self, job: WantedJob) -> None:
        """The job's command exited with 0."""

    def failed(self, job: WantedJob, why: str, logs: Sequence[Path]) -> None:
        """The job failed; `why` is a sentence."""

    def say(self, sentence: str) -> None:
        """A sentence for the user."""


@dataclass(slots=True, kw_only=True, eq=False)
class Submitter:
    """Sends waiting jobs as far as there is room, and retries those that were not taken."""

    records: Records
    scheduler: Scheduler
    settings: ExecutorSettings
    listener: Listener
    in_flight: Allocations
    outputs_are_complete: bool  # every output that exists
    waiting: list[WantedJob] = field(default_factory=list)
    unusable: dict[str, list[str]] = field(default_factory=dict)  # by host: why nothing ran there
    sent: int = 0  # allocations
    _tries: Counter[str] = field(default_factory=Counter)  # by kind of request: not taken in a row
    _until_s: dict[str, float] = field(default_factory=dict)  # by kind: not to be sent before
    _refusals: dict[str, str] = field(default_factory=dict)  # by request: final answers
    _announced: set[str] = field(default_factory=set)
    _closed: bool = False

    def close(self) -> None:
        """Send nothing more; safe to call in a signal handler."""
        self._closed = True

    def retry_now(self) -> None:
        """Retry what was not taken: something has ended, so there may be room."""
        self._until_s.clear()

    @property
    def excluded(self) -> list[str]:
        """Hosts that get nothing more."""
        return sorted(host for host, whys in self.unusable.items() if len(whys) >= _TOO_MANY)

    def send(self) -> None:
        """Send waiting jobs as far as there is room; the others go on waiting.

        A job that failed in a pack waits until all of that has ended.
        """
        waiting, self.waiting = self.waiting, []
        if self._closed:
            for job in waiting:
                self.listener.failed(job, "it was not sent: snakemake was told to end", [])
            return
        ready: list[WantedJob] = []
        for job in waiting:
            batch, _ = self.in_flight.last_place.get(job.key, (None, 0))
            (self.waiting if batch in self.in_flight else ready).append(job)
        packs = packs_of(
            ((self.scheduler.avoiding(job.request, self.excluded), job) for job in ready),
            most=self.settings.pack,
            most_minutes=self._longest,
        )
        for request, jobs in packs:
            is_early = time.monotonic() < self._until_s.get(request.kind, 0.0)
            if is_early or not self._has_room():
                self.waiting += jobs
            elif (message := self._refusals.get(request.key)) is not None:
                self._refuse(jobs, message)
            else:
                self._send(request, jobs)

    def _has_room(self) -> bool:
        """Whether one more allocation may be in flight."""
        most = self.settings.max_allocations
        return most is None or len(self.in_flight.live()) < most

    def _longest(self, request: Request) -> int | None:
        """Minutes that an allocation may ask for, by the user and by the scheduler."""
        limits = (self.settings.pack_minutes, self.scheduler.longest_minutes(request))
        return min((limit for limit in limits if limit is not None), default=None)

    def _send(self, request: Request, jobs: list[WantedJob]) -> None:
        name = jobs[0].name + (f" +{len(jobs) - 1}" if len(jobs) > 1 else "")
        batch = self.records.new_batch()
        try:
            _try_to_write({Path(output).parent for job in jobs for output in job.outputs})
            # on disk before it is sent: if this process dies in between, the next run finds it
            self.records.write_pack(
                batch,
                jobs,
                directory=Path.cwd(),
                environment=request.environment,
                outputs_are_complete=self.outputs_are_complete,
                restarts=min(map(self.in_flight.restarts_left, jobs)),
            )
            comment = f"{SENT_FROM} {Path.cwd().name}, {batch.name}"
            job_id = self.scheduler.send(batch, request, name=name, comment=comment)
        except BaseException as problem:  # a full or unavailable file system too, and Ctrl-C
            self.records.remove(batch)
            if not isinstance(problem, (Refused, OSError)):
                raise
            self._keep_or_refuse(problem, request, jobs)
            return
        allocation = Allocation(batch=batch, id=job_id)
        for number, job in enumerate(jobs):  # first, as a Ctrl-C cancels what is held
            self.in_flight.hold(allocation, number, job)
        self._tries.pop(request.kind, None)
        self.sent += 1
        self.listener.say(f"job {job_id}: {name}, at most {request.minutes} min")
        for job in jobs:
            self.listener.sent(job, job_id)

    def _keep_or_refuse(
        self, problem: Refused | OSError, request: Request, jobs: list[WantedJob]
    ) -> None:
        """Keep jobs that were not taken for a retry, or let them fail if that is hopeless."""
        message, kind = str(problem), problem.kind if isinstance(problem, Refused) else "later"
        self._tries[request.kind] += 1
        tries = self._tries[request.kind]
        if kind == "refused":
            self._refusals[request.key] = message
        # while allocations are in flight, an unknown message may be about a limit they use up
        if kind == "refused" or (
            kind == "unknown" and tries >= _MOST_TRIES and not self.in_flight.live()
        ):
            del self._tries[request.kind]
            self._refuse(jobs, message)
            return
        wait_s = min(_LONGEST_S, _FIRST_S * 2 ** (tries - 1))
        self._until_s[request.kind] = time.monotonic() + wait_s
        if message not in self._announced:
            self._announced.add(message)
            self.listener.say(f"{message}; {len(jobs)} jobs wait until this passes")
        self.waiting += jobs

    def _refuse(self, jobs: list[WantedJob], message: str) -> None:
        for job in jobs:
            self.listener.failed(job, f"the scheduler refused it: {message}", [])


def packs_of(
    waiting: Iterable[tuple[Request, Job]],
    *,
    most: int,
    most_minutes: Callable[[Request], int | None],
) -> list[tuple[Request, list[Job]]]:
    """Pack jobs of one kind of request, at most `most` in a pack, in the order they came.

    A pack's time limit, the sum of its jobs' limits and a margin, stays within `most_minutes` of
    their request (None: no limit). A job that alone needs longer gets its own pack.
    """
    packs: dict[str, list[tuple[Request, list[Job]]]] = {}
    for request, job in waiting:
        alike = packs.setdefault(request.kind, [])
        if alike:
            so_far, jobs = alike[-1]
            both = dataclasses.replace(
                request, runtime_min=so_far.runtime_min + request.runtime_min
            )
            longest = most_minutes(request)
            if len(jobs) < most and (longest is None or both.minutes <= longest):
                alike[-1] = both, [*jobs, job]
                continue
        alike.append((request, [job]))
    return [pack for alike in packs.values() for pack in alike]


def _try_to_write(folders: Iterable[Path]) -> None:
    """Check that results could be written, before anything runs.

    Raises:
        OSError: there is no room for a megabyte.
    """
    for folder in folders:
        if folder.is_dir():
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(1_000_000))
