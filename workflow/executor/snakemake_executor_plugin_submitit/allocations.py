"""Jobs that are wanted, who is told about them, and the allocations in flight that hold them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from .records import JobRecord
from .request import Request


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WantedJob:
    """A job that Snakemake wants run: its resources, its command, and its outputs."""

    request: Request
    record: JobRecord
    outputs: tuple[Path, ...]
    snakemake_job: Any = None


@dataclass(slots=True, kw_only=True, eq=False)
class Allocation:
    """One job of the scheduler, and the jobs of its pack that have not finished, by number.

    `ended_s` is the monotonic time at which it was first seen to have ended, None while it lives.
    """

    batch: Path
    id: str  # of the scheduler's job; "" if that has ended long ago
    gpus: tuple[int, ...] = ()  # of this machine (cluster=local)
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
        self.last_place[job.record.key] = allocation.batch, number

    def live(self) -> list[Allocation]:
        """Those that hold a job which has not finished."""
        return [allocation for allocation in self.values() if allocation.pending]

    def restarts_left(self, job: WantedJob) -> int:
        """How often a job may still be started again; negative: never more."""
        return self._restarts - self.interrupted[job.record.key]


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
