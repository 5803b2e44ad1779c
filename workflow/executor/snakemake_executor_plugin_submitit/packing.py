"""Decide which waiting jobs share an allocation."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import TypeVar

from .request import Request

Job = TypeVar("Job")


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
