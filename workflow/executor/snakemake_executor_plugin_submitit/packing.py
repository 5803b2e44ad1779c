"""Which waiting jobs share an allocation."""

from collections.abc import Iterable
from typing import TypeVar

from .request import Request

Job = TypeVar("Job")


def packs_of(
    waiting: Iterable[tuple[Request, Job]], *, most: int, most_minutes: int | None
) -> list[tuple[Request, list[Job]]]:
    """Jobs of equal requests in packs of at most `most`, in the order they came.

    A pack's time limit stays within `most_minutes`, but every pack holds at least one job: a job
    that alone needs longer is sent as it is, and the scheduler says what the limit is.
    """
    alike: dict[str, tuple[Request, list[Job]]] = {}
    for request, job in waiting:
        alike.setdefault(request.key, (request, []))[1].append(job)
    packs = []
    for request, jobs in alike.values():
        size = max(1, most)
        while most_minutes is not None and size > 1 and request.minutes(size) > most_minutes:
            size -= 1
        packs += [(request, jobs[first : first + size]) for first in range(0, len(jobs), size)]
    return packs
