"""The words between the executor and any scheduler."""

from dataclasses import dataclass
from typing import Literal

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
