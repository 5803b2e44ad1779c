"""What the executor asks of a scheduler, in words that every one of them knows."""

import abc
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from .. import pack
from ..request import Request

# What becomes of a request that was not taken:
#   refused   it will never be taken as it is
#   busy      it was not taken, and may be later: a limit on jobs
#   away      nobody answered: it may have been taken, and may be later
#   unknown   words that are not known: it may have been taken, and may be later, or never
Kind = Literal["refused", "busy", "away", "unknown"]


@dataclass(frozen=True, slots=True)
class State:
    """An allocation as the scheduler sees it: a word of its own, and why it waits."""

    word: str
    reason: str = ""
    live: bool = True  # it waits, runs, or is being cleaned up
    failed: bool = False  # it ended by itself, and not well
    preempted: bool = False  # its nodes were taken away for another job
    stuck: bool = False  # it waits for something that a user should know of


class Refused(RuntimeError):
    """The scheduler did not take an allocation; its text is what it said."""

    def __init__(self, message: str, kind: Kind = "unknown") -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def unsure(self) -> bool:
        """It may have been taken all the same."""
        return self.kind in ("away", "unknown")


class Scheduler(abc.ABC):
    """Where allocations run. An identity is a mapping with the scheduler's id as `job`.

    `gpus` are those of this machine to be shared out, None where they are the scheduler's business;
    `largest_array` says how many equal allocations can be sent as one; `forgets`, whether a job
    that it does not name may live all the same.
    """

    gpus: int | None = None
    largest_array: int = 1
    forgets: bool = False

    def __init__(self) -> None:
        self.queries: Counter[str] = Counter()

    def unusable(self) -> str | None:
        """Why nothing can be sent from here, as a sentence; None if it can."""
        return None

    def caution(self) -> str | None:
        """What a user should know before anything is sent from here, as a sentence."""
        return None

    @abc.abstractmethod
    def request(self, rule: str, wanted: Mapping[str, Any]) -> Request:
        """What a rule's resources ask for.

        Raises:
            RequestError: a resource is missing, misspelt, of the wrong kind, or not the rule's to
                set.
        """

    def avoiding(self, request: Request, hosts: Sequence[str]) -> Request:
        """The same request, for other hosts; the request itself where there are no others."""
        return request

    def impossible(self, request: Request) -> str | None:
        """Why no allocation can ever be given what is asked for; None if that is for it to say."""
        return None

    @abc.abstractmethod
    def send(
        self, batch: Path, allocations: Sequence[Path], request: Request, *, name: str,
        comment: str, minutes: int, gpus: Sequence[int],
    ) -> list[Mapping[str, Any]]:  # fmt: skip
        """Send the allocations of one batch; their identities, in their order.

        Raises:
            Refused: none was taken.
        """

    @abc.abstractmethod
    def states(self, identities: Sequence[Mapping[str, Any]]) -> dict[str, State] | None:
        """State by job id; an id that is missing has vanished; None: no answer this time."""

    def find(self, batch: str, request: Request) -> list[Mapping[str, Any]] | None:
        """Live jobs that were sent for this as `batch`; None: no answer this time."""
        return []

    @abc.abstractmethod
    def cancel(self, identities: Sequence[Mapping[str, Any]]) -> None:
        """End allocations and all they run."""


def pickle_by_value(*modules: ModuleType) -> None:
    """The worker travels whole, with these modules: compute nodes need not have this package."""
    import cloudpickle

    for module in (pack, *modules):
        cloudpickle.register_pickle_by_value(module)
