"""Which waiting jobs share an allocation; as a command, for who wants to know it beforehand.

    python -m snakemake_executor_plugin_submitit.packing < jobs.json

reads `{"most": 8, "most_minutes": 240, "jobs": [[nodes, ranks on each, minutes], ...]}` and prints
`[[nodes, ranks on each, minutes, jobs], ...]`, a pack each.
"""

import dataclasses
import json
import sys
from collections.abc import Iterable
from typing import TypeVar

from .request import Request

Job = TypeVar("Job")


def packs_of(
    waiting: Iterable[tuple[Request, Job]], *, most: int, most_minutes: int | None
) -> list[tuple[Request, list[Job]]]:
    """Jobs of one kind of request in packs of at most `most`, in the order they came.

    A pack's time limit, the sum of its jobs' and a margin, stays within `most_minutes`, but every
    pack holds at least one job: a job that alone needs longer is sent as it is, and the scheduler
    says what the limit is.
    """
    packs: dict[str, list[tuple[Request, list[Job]]]] = {}
    for request, job in waiting:
        alike = packs.setdefault(request.kind, [])
        if alike:
            so_far, jobs = alike[-1]
            both = dataclasses.replace(
                request, runtime_min=so_far.runtime_min + request.runtime_min
            )
            if len(jobs) < most and (most_minutes is None or both.minutes <= most_minutes):
                alike[-1] = both, [*jobs, job]
                continue
        alike.append((request, [job]))
    return [pack for alike in packs.values() for pack in alike]


def main() -> None:
    """See the module."""
    wanted = json.load(sys.stdin)
    waiting = []
    for nodes, ranks, minutes in wanted["jobs"]:
        options = (("nodes", nodes), ("ntasks-per-node", ranks))
        request = Request(
            runtime_min=minutes, nodes=nodes, gpus=0, options=options, setup=(), environment=()
        )
        waiting.append((request, (nodes, ranks)))
    packs = packs_of(waiting, most=wanted["most"], most_minutes=wanted["most_minutes"])
    records = [[*jobs[0], request.minutes, len(jobs)] for request, jobs in packs]
    print(json.dumps(records))  # noqa: T201 (a command)


if __name__ == "__main__":
    main()
