"""The interface by which the dispatcher reports on jobs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from .allocations import WantedJob


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
