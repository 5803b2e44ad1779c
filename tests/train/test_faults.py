"""A layout that trains something else is marked at its first or second step."""

import dataclasses

import pytest

from scaling.record.files import write_points, write_rows
from scaling.study.grid import Plan
from tests.analyse.conftest import read, tabulate_only
from tests.points import tiny_point
from tests.rows import row_of
from tests.train.test_parity import STEPS

pytestmark = pytest.mark.ranks

RIGHT = ({"dp": 2}, {"dp": 2, "zero_stage": 1}, {"tp": 2}, {"dp": 2, "engine": "torch"})


def named(point_id, layout, precision):
    point = tiny_point(measured_steps=STEPS, precision=precision, **layout)
    return dataclasses.replace(point, point_id=point_id)


@pytest.fixture(scope="session")
def right(ask):
    """The points of RIGHT and their curves, by precision."""

    def trained(precision):
        points = [named(str(n), layout, precision) for n, layout in enumerate(RIGHT)]
        return points, ask(points=[each.to_json() for each in points])

    return {precision: trained(precision) for precision in ("fp32", "bf16")}


FULL = {"activation_checkpointing": "full"}  # which none of RIGHT has
FAULTY = [
    ("fp32", "double_gradients_of_torch", {"dp": 2, "engine": "torch", "zero_stage": 1} | FULL),
    ("bf16", "double_gradients_of_deepspeed", {"dp": 2, "zero_stage": 2}),
    ("bf16", "skip_all_reduce", {"dp": 2, "engine": "torch", "optimizer_precision": "bf16"}),
    ("fp32", "skip_all_reduce_of_deepspeed", {"dp": 2} | FULL),
    ("bf16", "hold_the_first_shard", {"tp": 2, "engine": "torch"}),
    ("fp32", "hold_the_first_shard", {"tp": 2, "zero_stage": 1} | FULL),
]


@pytest.mark.parametrize(("precision", "fault", "layout"), FAULTY, ids=str)
def test_only_the_layout_with_a_fault_is_marked(right, ask, tmp_path, precision, fault, layout):
    wrong = named("wrong", layout, precision)
    (curve,) = ask(points=[wrong.to_json()], fault=fault)
    points, curves = right[precision]
    points, curves = [*points, wrong], [*curves, curve]
    write_points(tmp_path, Plan(points=tuple(points), refusals=()))
    for point, ranks in zip(points, curves, strict=True):
        write_rows(tmp_path / "rows" / f"{point.point_id}.parquet", [row_of(point, **ranks[0])])
    tabulate_only(tmp_path, tmp_path / "sql", "losses")
    rows = {row["point_id"]: row for row in read(tmp_path / "tables" / "losses.parquet")}
    marked = [name for name, row in rows.items() if not row["agrees"]]
    assert marked == ["wrong"]
    if "all_reduce" in fault:
        assert rows["wrong"]["differs_in"] == "replicas"
    else:
        assert rows["wrong"]["at_step"] <= 2
