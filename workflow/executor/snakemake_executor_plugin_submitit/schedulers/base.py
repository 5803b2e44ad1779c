"""The interface between the executor and any scheduler."""

import abc
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..request import Request

# Why a request was not taken:
#   refused   it will never be taken as it is
#   later     it was not taken, or nobody knows, but it may be later
#   unknown   an unknown message: it may be taken later or never
Kind = Literal["refused", "later", "unknown"]


# Begins what a job's comment says of the directory and the batch that it was sent from.
SENT_FROM = "snakemake in"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """An allocation as the scheduler sees it."""

    text: str  # for people, with what to do about its end
    reason: str = ""  # why it waits
    live: bool = True  # it waits, runs, or is being cleaned up
    waits: bool = False  # for its nodes, for the first time or again
    failed: bool = False  # it ended by itself with a failure
    preempted: bool = False  # its nodes were taken for another job
    stuck: bool = False  # it waits for something that the user should know about
    given_up: bool = False  # it could not be started, and waits for somebody to release it


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A job as the scheduler lists it."""

    id: str
    state: State
    directory: str  # that it was sent from
    batch: str = ""  # of a Snakemake's that it is


class Refused(RuntimeError):
    """The scheduler did not take an allocation; the message is what it printed."""

    def __init__(self, message: str, kind: Kind = "unknown") -> None:
        super().__init__(message)
        self.kind = kind


class Scheduler(abc.ABC):
    """The place where allocations run."""

    def __init__(self) -> None:
        self.queries: Counter[str] = Counter()

    def prepare(self) -> str | None:
        """Prepare this process to send from here; what the user should know, as a sentence.

        Raises:
            RequestError: nothing can be sent from here.
        """
        return None

    def avoiding(self, request: Request, hosts: Sequence[str]) -> Request:
        """The same request without these hosts; unchanged where there are no other hosts."""
        return request

    def impossible(self, request: Request) -> str | None:
        """Why such an allocation can never be given; None if only the scheduler can tell."""
        return None

    def longest_minutes(self, request: Request) -> int | None:
        """The longest time limit that such an allocation may have; None: no limit is known."""
        return None

    @abc.abstractmethod
    def send(self, batch: Path, request: Request, *, name: str, comment: str) -> str:
        """Send the allocation of a batch; returns its id.

        Raises:
            Refused: it was not taken.
        """

    @abc.abstractmethod
    def listed(self, uid: int | None = None) -> list[Listed] | None:
        """Jobs of a user, by default this one, that live or ended lately; None: no answer."""

    def left_in(self, directory: Path, uid: int) -> list[str] | None:
        """Ids of live jobs that this user's Snakemakes sent from there; None: no answer."""
        listed = self.listed(uid)
        if listed is None:
            return None
        here = (each for each in listed if each.batch and each.directory == str(directory))
        return [each.id for each in here if each.state.live]

    def accounted(self, jobs: Sequence[str]) -> dict[str, State]:
        """States of jobs that are listed no more, by id, as far as they are known."""
        return {}

    @abc.abstractmethod
    def cancel(self, jobs: Sequence[str]) -> bool:
        """End allocations and everything they run; whether the scheduler has taken it."""
