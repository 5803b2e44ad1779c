"""The table of axes is the one place of an axis: a line there is an axis everywhere."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from pydantic import ValidationError

from scaling.layout.axes import AXES, DEFAULTS, axes_of
from scaling.layout.layout import layout_label
from scaling.record.row import PointColumns, Row, fields_of
from scaling.study import grid
from scaling.study.grid import Refusal
from scaling.study.load import load_study
from scaling.study.schema import Axes
from tests.conftest import PROJECT
from tests.samples import values_of

MADE_UP = """\
    gear: Literal["first", "second"] = _axis(
        "first", added_later=True, title="gear", name="{} gear", label="gear-{}",
        column="gear",
    )
    road: Literal["dry", "wet"] = _axis(
        "dry", added_later=True, setting=True, title="road", name="{} road",
        label="road-{}", column="road",
    )
    sparse_mlp: bool = _flag("sparse mlp", "sparse-mlp", added_later=True)
"""
# By file: a text of it, and what stands there once the axes exist. A flag that is computed and
# predicted takes three files.
CHANGES = {
    "layout/axes.py": (
        "    precision: Precision = _axis(",
        MADE_UP + "    precision: Precision = _axis(",
    ),
    "train/model/blocks.py": (
        "    return lambda gate, up: activate(gate) * up\n",
        "    if plan.layout.sparse_mlp:\n"
        "        return lambda gate, up: functional.relu(gate) * up\n"
        "    return lambda gate, up: activate(gate) * up\n",
    ),
    "predict/cost/compute.py": (
        "    flops = (attention * f.attention_weights",
        "    mlp = mlp * np.where(f.sparse_mlp, 0.5, 1.0)\n"
        "    flops = (attention * f.attention_weights",
    ),
}
USED = """\
import dataclasses

import torch

from scaling.layout.layout import Layout
from scaling.predict.cost.model import predict
from scaling.predict.read.points import points_of_layouts
from scaling.predict.read.residual import NAMES
from scaling.study.load import load_clusters
from tests.points import TINY, tiny_point
from tests.train.test_model import blueprint
from tests.train.test_oracles import decoder, logits_of

plain = Layout(dp=8, seq_length=2048, micro_batch_size=8)
sparse = dataclasses.replace(plain, sparse_mlp=True)
wide = dataclasses.replace(TINY, hidden_size=4096, ffn_hidden_size=16384)
points = points_of_layouts(
    [plain, sparse], [wide] * 2, load_clusters(), models=["m"] * 2, clusters=["h100-80gb-dgx"] * 2
)
before, after = predict(points).time_terms["gemm_s"]
assert after < 0.8 * before, (before, after)
assert "sparse_mlp" in NAMES  # what formulas leave of it is learned from rows
assert "sparse-mlp" in sparse.label
logits = [logits_of(decoder(TINY, sparse_mlp=on)) for on in (False, True)]
assert not torch.equal(*logits)
"""
STUDY = """\
title: Is the second gear faster?
kind: strong
mode: predict
axes:
  model: llama2_7b
  cluster: h100-80gb-dgx
  world_size: 8
  global_batch_size: 64
  seq_length: 2048
  gear: [first, second]
  road: [dry, wet]
layouts:
  - {zero_stage: 3}
  - {tp: 2, zero_stage: 1}
"""


@pytest.fixture(scope="module")
def geared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with three axes more, one of them a setting, and their study, reported."""
    root = tmp_path_factory.mktemp("geared")
    for folder in ("scaling", "reports", "config", "tests"):
        shutil.copytree(PROJECT / folder, root / folder)
    for name, (before, after) in CHANGES.items():
        path = root / "scaling" / name
        text = path.read_text(encoding="utf-8")
        assert text.count(before) == 1
        path.write_text(text.replace(before, after), encoding="utf-8")
    (root / "config" / "studies" / "gears.yaml").write_text(STUDY, encoding="utf-8")
    results = "results/gears"
    verbs = (
        ("plan", "gears"),
        ("predict", f"{results}/points.parquet", f"{results}/predictions.parquet"),
        ("tabulate", results),
        ("report", results, "--no-tables", "--no-charts"),
    )
    run = (
        f"from scaling.cli.verbs import app\nfor verb in {verbs}: app(verb, standalone_mode=False)"
    )
    subprocess.run([sys.executable, "-c", f"{run}\n{USED}"], cwd=root, check=True)
    return root / results


@pytest.mark.slow
def test_a_line_of_the_table_is_a_study_key_and_a_column(geared: Path) -> None:
    rows = duckdb.sql(f"select gear, layout from '{geared}/points.parquet'").fetchall()
    assert sorted(gear for gear, _ in rows) == ["first"] * 4 + ["second"] * 4
    assert all(("gear-second" in label) == (gear == "second") for gear, label in rows)


@pytest.mark.slow
def test_a_new_axis_keeps_ids_at_its_default_and_changes_them_else(
    geared: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    shutil.copytree(PROJECT / "config", config)
    plain = STUDY.replace("  gear: [first, second]\n  road: [dry, wet]\n", "")
    (config / "studies" / "gears.yaml").write_text(plain, encoding="utf-8")
    before = {point.point_id for point in grid.expand_grid(load_study("gears", config)).points}
    ids = duckdb.sql(f"select point_id, gear, road from '{geared}/points.parquet'").fetchall()
    assert {point_id for point_id, *choices in ids if choices == ["first", "dry"]} == before
    assert len({point_id for point_id, *_ in ids}) == 8


@pytest.mark.slow
def test_a_line_of_the_table_reaches_tables_names_and_the_page(geared: Path) -> None:
    names = duckdb.sql(f"select layout_name from '{geared}/tables/names.parquet'").fetchall()
    assert sorted("second gear" in name for (name,) in names) == [False] * 4 + [True] * 4
    listed = duckdb.sql(f"select distinct gear from '{geared}/tables/statistics.parquet'")
    assert sorted(listed.fetchall()) == [("first",), ("second",)]
    page = (geared / "report.html").read_text(encoding="utf-8")
    (axes,) = re.findall(r'<script type="application/json" id="axes">(.*?)</script>', page)
    assert "gear" in {axis["key"] for axis in json.loads(axes)}
    assert "second gear" in page


@pytest.mark.slow
def test_an_axis_of_the_work_is_never_compared(geared: Path) -> None:
    def table(name: str, what: str) -> list[tuple[object, ...]]:
        return duckdb.sql(f"select {what} from '{geared}/tables/{name}.parquet'").fetchall()

    roads = dict(table("comparison_groups", "group_id, kept_choices"))
    assert sorted(roads.values()) == ["", "wet road"]
    placed = table("statistics", "group_id, road")
    assert {(roads[setting], road) for setting, road in placed} == {
        ("", "dry"),
        ("wet road", "wet"),
    }
    assert {setting for (setting,) in table("sizes", "group_id")} == set(roads)
    assert not any("road" in str(name) for (name,) in table("names", "layout_name"))
    assert {factor for (factor,) in table("effects", "factor")} == {"gear"}
    page = (geared / "report.html").read_text(encoding="utf-8")
    assert "wet road" in page


def test_studies_points_refusals_and_rows_have_the_axes_of_the_table() -> None:
    for kind in (PointColumns, Refusal, Row):
        assert set(AXES) <= set(fields_of(kind))
        assert {name: axes_of(kind)[name] for name in AXES} == AXES
    assert set(AXES) <= set(Axes.model_fields)


@pytest.mark.parametrize("name", AXES)
def test_layouts_that_differ_in_one_axis_have_different_labels(name: str) -> None:
    labels = {layout_label({**DEFAULTS, name: value}) for value in values_of(AXES[name])}
    assert len(labels) == len(values_of(AXES[name]))


@pytest.mark.parametrize("name", AXES)
def test_an_axis_allows_its_values_and_nothing_else(name: str) -> None:
    axis = AXES[name]
    allowed = [*values_of(axis), *([None] if axis.optional else [])]
    assert Axes.model_validate({name: allowed}).stated() == {name: tuple(dict.fromkeys(allowed))}
    absent = [] if axis.optional else [None]
    for wrong in (-1, 0.5, "no such choice", [], 2 if axis.kind is bool else True, *absent):
        with pytest.raises(ValidationError):
            Axes.model_validate({name: wrong})
