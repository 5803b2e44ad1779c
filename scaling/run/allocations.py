"""What a sweep's allocations were used for, in a sentence; the table has them one by one."""

import math
from pathlib import Path

import pyarrow.parquet as pq

from scaling.cluster.hardware import GIB
from scaling.run.progress import duration
from scaling.study.paths import StudyPaths

_KWH_J = 3.6e6


def use_of_allocations(folder: Path) -> str | None:
    """How many there were, how long, and what of it went into measured steps.

    From tables/allocations.parquet, as it was last made; None where there is none, or no allocation
    in it.
    """
    table = StudyPaths(folder).tables / "allocations.parquet"
    if not table.exists():
        return None
    allocations = [one for one in pq.read_table(table).to_pylist() if one["span_s"]]
    if not allocations:
        return None
    span_s = math.fsum(one["span_s"] for one in allocations)
    in_steps_s = math.fsum(one["in_steps_s"] for one in allocations)
    least = min(allocations, key=lambda one: one["share_in_steps"])
    memory = [one["peak_memory_bytes"] for one in allocations if one["peak_memory_bytes"]]
    energy = [one["energy_j"] for one in allocations if one["energy_j"] is not None]
    parts = [
        f"{len(allocations)} allocations, {duration(span_s)} in all: "
        f"{in_steps_s / span_s:.0%} in measured steps"
        f" (least: job {least['job_id']}, {least['share_in_steps']:.0%})"
    ]
    if memory:
        parts.append(f"at most {max(memory) / GIB:,.1f} GiB a rank")
    if energy:
        parts.append(f"{math.fsum(energy) / _KWH_J:,.3g} kWh in full steps")
    return ", ".join(parts)
