"""Jobs that wait to be sent, and how they become allocations."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

from .allocations import Allocation, Allocations, Limits, Listener, WantedJob
from .backoff import Backoff
from .excluded_hosts import ExcludedHosts
from .packing import packs_of
from .records import Records
from .request import Request
from .schedulers import SENT_FROM, Refused, Scheduler

# An unknown answer of the scheduler becomes final after this many in a row, about five minutes.
MOST_TRIES = 7


class Submitter:
    """Sends waiting jobs as far as there is room, and retries those that were not taken."""

    def __init__(
        self, *, records: Records, scheduler: Scheduler, limits: Limits, listener: Listener,
        directory: Path, in_flight: Allocations, excluded: ExcludedHosts,
    ) -> None:  # fmt: skip
        self._records = records
        self._scheduler = scheduler
        self._limits = limits
        self._listener = listener
        self._directory = directory
        self._open = in_flight
        self._excluded = excluded
        self.unwanted: set[str] = set()  # batches that may have been taken without an answer
        self._backoff = Backoff()
        self._refusals: dict[str, str] = {}  # by request: final answers of the scheduler
        self._announced: set[str] = set()
        self._waiting: list[WantedJob] = []
        self._closed = False
        self._array = scheduler.largest_array if limits.array else 1  # allocations sent as one
        self.allocations_sent = 0

    def add(self, jobs: Iterable[WantedJob]) -> None:
        """Queue jobs for the next `send`."""
        self._waiting += jobs

    def close(self) -> None:
        """Send nothing more; safe to call in a signal handler."""
        self._closed = True

    def clear(self) -> None:
        """Forget waiting jobs."""
        self._waiting.clear()

    def retry_now(self) -> None:
        """Retry what was not taken: something has ended, so there may be room."""
        self._backoff.retry_now()

    def send(self) -> None:
        """Send waiting jobs as far as there is room; the others go on waiting."""
        if self._closed:
            self._give_up()
            return
        waiting, self._waiting = self._waiting, []
        ready: list[WantedJob] = []
        for job in waiting:
            (self._waiting if self._open.must_wait(job) else ready).append(job)
        packs = packs_of(
            ((self._scheduler.avoiding(job.request, self._excluded.names), job) for job in ready),
            most=self._limits.pack,
            most_minutes=self._longest,
        )
        while packs:
            request, first = packs.pop(0)
            gpus_each = request.gpus if self._scheduler.gpus is not None else 0
            slots = self._open.free_slots(gpus_each)
            if slots == 0 or self._backoff.must_wait(request.kind):
                self._waiting += first
                continue
            array = [first]
            most = self._array if slots is None else min(slots, self._array)
            while len(array) < most and _next_fits(packs, request, first):
                array.append(packs.pop(0)[1])
            self._send(request, array, gpus_each)

    def _longest(self, request: Request) -> int | None:
        """Minutes that an allocation may ask for, by the user and by the scheduler."""
        limits = (self._limits.pack_minutes, self._scheduler.longest_minutes(request))
        return min((limit for limit in limits if limit is not None), default=None)

    def _send(self, request: Request, packs: list[list[WantedJob]], gpus_each: int) -> None:
        message = self._refusals.get(request.key)
        if message is not None:
            self._refuse(packs, message)
            return
        allocations: list[Allocation] = []
        count, name = sum(map(len, packs)), packs[0][0].record.name
        batch, was_sent = None, False
        try:
            _try_to_write({output.parent for job in packs[0] for output in job.outputs})
            batch = self._records.open_batch()
            for number, jobs in enumerate(packs):
                # on disk before it is sent: if this process dies in between, the next run finds it
                folder = batch / str(number)
                self._records.write_pack(
                    folder,
                    [job.record for job in jobs],
                    directory=self._directory,
                    environment=dict(request.environment),
                    outputs_are_complete=self._limits.outputs_are_complete,
                    restarts=min(self._limits.restarts_left(job.record.key) for job in jobs),
                )
                allocations.append(Allocation(folder=folder, id=None))
                self._open.add(allocations[-1], gpus=gpus_each)
            was_sent = True
            ids = self._scheduler.send(
                batch,
                [allocation.folder for allocation in allocations],
                request,
                name=name if count == 1 else f"{name} +{count - 1}",
                comment=f"{SENT_FROM} {self._directory.name}, {batch.name}",
                minutes=request.minutes,
                gpus=allocations[0].gpus,
            )
        except (Refused, OSError) as problem:  # OSError: a full or unavailable file system
            for allocation in allocations:
                self._open.close(allocation)
            if batch is not None:
                if was_sent and (isinstance(problem, OSError) or problem.may_be_taken):
                    self._withdraw(batch)
                else:
                    self._records.remove(batch)
            self._keep_or_refuse(problem, request, packs)
            return
        except BaseException:  # Ctrl-C
            if batch is not None:
                self._withdraw(batch)
            raise
        self._backoff.reset(request.kind)
        if self._limits.array:
            self._array = min(2 * self._array, self._scheduler.largest_array)
        self.allocations_sent += len(allocations)
        for allocation, job_id, jobs in zip(allocations, ids, packs, strict=True):
            allocation.id = job_id
            content = jobs[0].record.name + (f" +{len(jobs) - 1}" if len(jobs) > 1 else "")
            self._listener.say(f"job {allocation.job_id}: {content}, at most {request.minutes} min")
            for number, job in enumerate(jobs):
                self._open.hold(allocation, number, job)
                self._listener.sent(job, allocation.job_id)

    def _withdraw(self, batch: Path) -> None:
        """Have a batch that may have been taken run nothing; it is cancelled when it is listed."""
        self.unwanted.add(batch.name)
        for pack in batch.glob("*/pack.json"):
            self._records.withdraw(pack.parent, self._records.unfinished(pack.parent))

    def _keep_or_refuse(
        self, problem: Refused | OSError, request: Request, packs: list[list[WantedJob]]
    ) -> None:
        """Keep jobs that were not taken for a retry, or let them fail if that is hopeless."""
        message = str(problem)
        tries = self._backoff.count_refusal(request.kind)
        if isinstance(problem, Refused):
            # while allocations are in flight, an unknown message may be about a limit they use up
            hopeless = problem.kind == "unknown" and tries >= MOST_TRIES and not len(self._open)
            if problem.kind == "refused":
                self._refusals[request.key] = message
            if problem.kind == "refused" or hopeless:
                self._backoff.reset(request.kind)
                self._refuse(packs, message)
                return
            if problem.kind == "busy" and len(packs) > 1:  # each task counts as a job
                self._array = len(packs) // 2
                self._backoff.reset(request.kind)
        if message not in self._announced:
            self._announced.add(message)
            self._listener.say(f"{message}; {sum(map(len, packs))} jobs wait until this passes")
        self._waiting += [job for jobs in packs for job in jobs]

    def _refuse(self, packs: list[list[WantedJob]], message: str) -> None:
        for jobs in packs:
            for job in jobs:
                self._listener.failed(job, f"the scheduler refused it: {message}", [])

    def _give_up(self) -> None:
        waiting, self._waiting = self._waiting, []
        for job in waiting:
            self._listener.failed(job, "it was not sent: snakemake was told to end", [])


def _try_to_write(folders: Iterable[Path]) -> None:
    """Check that results could be written, before anything runs.

    Raises:
        OSError: there is no room for a megabyte.
    """
    for folder in folders:
        if folder.is_dir():
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(1_000_000))


def _next_fits(
    packs: list[tuple[Request, list[WantedJob]]], request: Request, first: list[WantedJob]
) -> bool:
    return bool(packs) and packs[0][0].key == request.key and len(packs[0][1]) == len(first)
