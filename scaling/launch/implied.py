"""The outcome of a point that an existing row implies."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from scaling.launch.make_row import provenance_of
from scaling.record.files import read_row
from scaling.record.row import Row
from scaling.study.ids import DIGEST, point_id
from scaling.study.point import Point

_SOFTWARE = ("torch_version", "scaling_version")


def oom_twin(point: Point, rows: Path) -> Row | None:
    """The row of this point with a smaller micro-batch that ran out of memory; None if none did.

    All else is equal, the software and the cluster too.
    """
    here = provenance_of(None)
    for twin in _with_smaller_micro_batches(point):
        path = rows / f"{twin}.parquet"
        if not path.is_file():
            continue
        row = read_row(path)
        same = all(getattr(row, name) in (None, here[name]) for name in _SOFTWARE)
        if row.outcome == "oom" and row.cluster == point.cluster and same:
            return row
    return None


def _with_smaller_micro_batches(point: Point) -> Iterator[str]:
    """The ids of the point's twins, the largest micro-batch first."""
    layout = point.layout
    sequences = layout.micro_batch_size * layout.gradient_accumulation_steps
    for size in range(layout.micro_batch_size - 1, 0, -1):
        if sequences % size == 0:
            smaller = dataclasses.replace(
                layout, micro_batch_size=size, gradient_accumulation_steps=sequences // size
            )
            twin = dataclasses.replace(point, layout=smaller, repeat=0)
            yield point_id(f"{point.model}-{smaller.file_name}", twin, DIGEST)
