"""The first rows and probes of a real GPU, and a study that holds them.

`rows.parquet` has 13 layouts on one H100 80GB HBM3 (torch 2.11.0, CUDA 13.0, NCCL 2.28.9), as
`scaling check` wrote them, and `probes.parquet` what this GPU reached. All were trained at a
learning rate of 1e-3, at which losses part after the third step.
"""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from scaling.layout.axes import AXES
from scaling.record.files import write_rows
from scaling.record.row import Row, fields_of
from scaling.run.plan_writer import StudyPlan, write_plan
from scaling.run.planning import fit
from scaling.study.grid import expand_grid
from scaling.study.load import load_study
from scaling.study.paths import StudyPaths
from scaling.study.point import Point, point_from_json
from tests.conftest import PROJECT

HERE = Path(__file__).parent
STUDY, ROWS, PROBES = HERE / "h100.yaml", HERE / "rows.parquet", HERE / "probes.parquet"


def h100_rows() -> list[dict[str, Any]]:
    """The rows as they were written, with nulls in columns that are newer."""
    return [dict.fromkeys(fields_of(Row)) | row for row in pq.read_table(ROWS).to_pylist()]


def h100_study(root: Path) -> Path:
    """The folder results/h100 under `root`: the study planned, and all its points measured."""
    study, folder = load_study(STUDY, PROJECT / "config"), root / "results" / "h100"
    plan = fit(study, expand_grid(study))
    write_plan(StudyPlan(study=study, folder=folder, plan=plan, probe_plan=None, made_from=""))
    measure_all(folder)
    return folder


def measure_all(study_dir: Path) -> None:
    """Give every planned point of a study that follows STUDY its row."""
    paths = StudyPaths(study_dir)
    for path in sorted(paths.points.glob("*.json")):
        point = point_from_json(path.read_text())
        write_rows(paths.row(point.point_id), [row_of_point(point)])


def row_of_point(point: Point) -> Row:
    """The row of this layout, as the point's."""
    said = {name: getattr(point.layout, name) for name in AXES}
    said |= {"model": point.model, "global_batch_size": point.layout.global_batch_size}
    (row,) = [row for row in h100_rows() if said.items() <= row.items()]
    same = ("study", "study_kind", "point_id", "cluster", "gpus_per_node", "seed", "time_limit_s")
    row |= {name: getattr(point, name) for name in same}
    return Row(**{name: row[name] for name in fields_of(Row)})
