"""Jobs that are wanted, who is told about them, and the allocations in flight that hold them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from .records import JobRecord
from .request import Request
from .schedulers import JobId


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WantedJob:
    """A job that Snakemake wants run: its resources, its command, and its outputs."""

    request: Request
    record: JobRecord
    outputs: tuple[Path, ...]
    snakemake_job: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How jobs are packed, how many allocations may be in flight, and who may start again."""

    pack: int = 1
    pack_minutes: int | None = None
    array: bool = False
    max_allocations: int | None = None
    latency_s: float = 5.0  # until a file written elsewhere must be visible
    outputs_are_complete: bool = False  # every existing output counts as finished
    restarts: int = 3  # how often a job may be started again in a run, whatever interrupted it
    interrupted: Counter[str] = field(default_factory=Counter)  # so often it was, by job

    def restarts_left(self, key: str) -> int:
        """How often a job may still be started again; negative: never more."""
        return self.restarts - self.interrupted[key]


@dataclass(slots=True, kw_only=True, eq=False)
class Allocation:
    """One job of the scheduler, and the jobs of its pack that have not finished, by number.

    `id` is None while it is being submitted. `ended_s` is the monotonic time at which it was first
    seen to have ended, None while it lives.
    """

    folder: Path
    id: JobId | None
    gpus: list[int] = field(default_factory=list)
    pending: dict[int, WantedJob] = field(default_factory=dict)
    reattached: bool = False
    ended_s: float | None = None

    @property
    def job_id(self) -> str:
        """The scheduler's id."""
        return "(unknown)" if self.id is None else self.id.job


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


class Allocations:
    """Allocations in flight, and the free GPUs of this machine (cluster=local)."""

    def __init__(self, *, most: int | None, gpus: int) -> None:
        self._most = most
        self._by_folder: dict[Path, Allocation] = {}
        self._just_ended: set[Path] = set()  # since the last poll began
        self._failed_in: dict[str, Path] = {}  # by job, where it failed last
        self._held: dict[str, tuple[Path, int]] = {}  # by job
        self._free_gpus = list(range(gpus))

    def __iter__(self) -> Iterator[Allocation]:
        return iter(list(self._by_folder.values()))

    def __len__(self) -> int:
        return len(self._by_folder)

    def hold(self, allocation: Allocation, number: int, job: WantedJob) -> None:
        """Note that an allocation holds a job, by its number in the pack."""
        allocation.pending[number] = job
        self._held[job.record.key] = allocation.folder, number

    def held(self, key: str) -> tuple[Path, int] | None:
        """The allocation that held a job last, and its number there; asked once."""
        return self._held.pop(key, None)

    def get(self, folder: Path) -> Allocation | None:
        """The allocation of this folder if it is in flight."""
        return self._by_folder.get(folder)

    def add(self, allocation: Allocation, *, gpus: int = 0) -> None:
        """Put an allocation in flight, on this many free GPUs of this machine."""
        allocation.gpus, self._free_gpus = self._free_gpus[:gpus], self._free_gpus[gpus:]
        self._by_folder[allocation.folder] = allocation

    def close(self, allocation: Allocation) -> None:
        """Remove an allocation that nobody waits for, and free its GPUs."""
        del self._by_folder[allocation.folder]
        self._just_ended.add(allocation.folder)
        self._free_gpus = sorted([*self._free_gpus, *allocation.gpus])

    def begin_poll(self) -> None:
        """Allow jobs that failed in allocations which ended before now to be repeated."""
        self._just_ended.clear()

    def record_failure(self, job: WantedJob, allocation: Allocation) -> None:
        """Remember in which allocation a job failed."""
        self._failed_in[job.record.key] = allocation.folder

    def must_wait(self, job: WantedJob) -> bool:
        """Whether the pack where the job failed still runs: its failures repeat together."""
        folder = self._failed_in.get(job.record.key)
        return folder in self._by_folder or folder in self._just_ended

    def free_slots(self, gpus_each: int) -> int | None:
        """Allocations of `gpus_each` GPUs that may start now; None: no limit."""
        limits = []
        if self._most is not None:
            limits.append(max(0, self._most - len(self)))
        if gpus_each:
            limits.append(len(self._free_gpus) // gpus_each)
        return min(limits, default=None)
