"""The row of a point whose outcome an existing row implies."""

import dataclasses
import time
from pathlib import Path

from scaling.launch.judge import Verdict
from scaling.launch.make_row import provenance_of, row_of
from scaling.launch.ranks import FinishedRun
from scaling.record.files import read_row
from scaling.record.row import Row
from scaling.study.ids import DIGEST, point_id
from scaling.study.point import Point


def implied_row(point: Point, attempt: int, rows: Path) -> Row | None:
    """The row of a point that need not start: with a smaller micro-batch it ran out of memory.

    All else is equal, the software and the cluster too. None if no row in `rows` shows it.
    """
    here, layout = provenance_of(None), point.layout
    sequences = layout.micro_batch_size * layout.gradient_accumulation_steps
    for size in range(layout.micro_batch_size - 1, 0, -1):
        if sequences % size:
            continue
        smaller = dataclasses.replace(
            layout, micro_batch_size=size, gradient_accumulation_steps=sequences // size
        )
        twin = dataclasses.replace(point, layout=smaller, repeat=0)
        path = rows / f"{point_id(f'{point.model}-{smaller.file_name}', twin, DIGEST)}.parquet"
        if not path.is_file():
            continue
        row = read_row(path)
        software = ("torch_version", "scaling_version")
        same = all(getattr(row, name) in (None, here[name]) for name in software)
        if row.outcome == "oom" and row.cluster == point.cluster and same:
            message = f"implied: micro_batch_size={size} ran out of memory"
            judged = Verdict(outcome="oom", message=message)
            run = FinishedRun(verdict=judged, started_at=time.time(), duration_s=0.0)
            return dataclasses.replace(row_of(point, attempt, run), implied_by=row.point_id)
    return None
