"""The table of engines: a line there and a room are an engine; nothing else names one."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scaling.layout.axes import AXES
from scaling.layout.engines import ENGINES
from scaling.study import grid
from scaling.study.load import load_study
from tests.conftest import PROJECT

# Files that may name DeepSpeed outside its room, and why.
MAY_NAME = {
    "scaling/layout/axes.py": "the default of the axis",
    "scaling/layout/engines.py": "the table of engines",
    "scaling/trainers/render.py": "its configuration, which `scaling command` writes",
    "scaling/launch/make_row.py": "the row's deepspeed_version",
    "scaling/launch/start/environment.py": "its tensor-parallel ranks need one queue",
    "scaling/record/rank_files.py": "the row's deepspeed_version",
    "scaling/record/row.py": "the row's deepspeed_version",
    "scaling/report/sections/runs.py": "its configuration, to copy",
    "scaling/report/tables.py": "the row's deepspeed_version",
    "scaling/train/device.py": "the row's deepspeed_version",
    "scaling/train/hf_trainer.py": "its option of that name",
}
ROOMS = ("scaling/train/engines/deepspeed/", "scaling/predict/")  # predict: facts about stacks


def test_deepspeed_is_named_where_it_is_called_and_nowhere_else() -> None:
    named = {
        str(path.relative_to(PROJECT))
        for path in (PROJECT / "scaling").rglob("*.py")
        if re.search("deepspeed", path.read_text(encoding="utf-8"), re.IGNORECASE)
    }
    assert {path for path in named if not path.startswith(ROOMS)} == set(MAY_NAME)


def test_the_values_of_the_axis_are_the_engines() -> None:
    assert AXES["engine"].values == tuple(ENGINES)


MODULES = {
    "__init__": "",
    "refusals": """\
def layout_refusals(shape, layout):
    if layout.tp > 1:
        yield "made_up shards nothing"


def clipping_refusals(layout, gradient_clipping):
    return iter(())
""",
    "engine": """\
def build(plan, groups, beat):
    beat("building made_up")
    return "a trainer"
""",
}
STUDY = """\
title: Is the other engine faster?
kind: strong
axes:
  model: llama2_7b
  cluster: h100-80gb-dgx
  world_size: 8
  global_batch_size: 64
  seq_length: 2048
  engine: [deepspeed, made_up]
layouts:
  - {zero_stage: 3}
  - {tp: 2, zero_stage: 1}
"""
USE = """\
import json
from pathlib import Path
from types import SimpleNamespace
from scaling.layout.layout import Layout
from scaling.study import grid
from scaling.study.load import load_study
from scaling.train.engines.trainer import build
planned = grid.expand_grid(load_study("engines", Path("config")))
beats = []
plan = SimpleNamespace(layout=Layout(engine="made_up", seq_length=32))
groups = SimpleNamespace(apply_timeout_to_all_groups=lambda: beats.append("limited"))
print(json.dumps({
    "points": [[p.layout.engine, p.layout.label, p.point_id] for p in planned.points],
    "refused": [[r.engine, r.tp, r.reason] for r in planned.refusals],
    "built": [build(plan, groups, beats.append), *beats],
}))
"""


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The project with one more engine: a line of the table and a room."""
    root = tmp_path_factory.mktemp("engines")
    for folder in ("scaling", "config"):
        shutil.copytree(PROJECT / folder, root / folder)
    table = root / "scaling" / "layout" / "engines.py"
    text, line = table.read_text(encoding="utf-8"), "ENGINES = {\n"
    assert text.count(line) == 1
    added = line + '    "made_up": "scaling.train.engines.made_up",\n'
    table.write_text(text.replace(line, added), encoding="utf-8")
    room = root / "scaling" / "train" / "engines" / "made_up"
    room.mkdir()
    for name, module in MODULES.items():
        (room / f"{name}.py").write_text(module, encoding="utf-8")
    (root / "config" / "studies" / "engines.yaml").write_text(STUDY, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-c", USE], cwd=root, check=True, capture_output=True, text=True
    )
    answer: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return answer


def test_an_engine_of_the_table_is_planned_labelled_and_built(made_up: dict[str, Any]) -> None:
    engines = [engine for engine, _, _ in made_up["points"]]
    assert sorted(engines) == ["deepspeed", "deepspeed", "made_up"]
    assert all((engine in label) == (engine == "made_up") for engine, label, _ in made_up["points"])
    assert made_up["refused"] == [["made_up", 2, "made_up shards nothing"]]
    assert made_up["built"] == ["a trainer", "building made_up", "limited"]


def test_points_from_before_there_was_a_choice_keep_their_ids(
    made_up: dict[str, Any], tmp_path: Path
) -> None:
    config = tmp_path / "config"
    shutil.copytree(PROJECT / "config", config)
    plain = STUDY.replace("  engine: [deepspeed, made_up]\n", "")
    (config / "studies" / "engines.yaml").write_text(plain, encoding="utf-8")
    before = {point.point_id for point in grid.expand_grid(load_study("engines", config)).points}
    assert {id_ for engine, _, id_ in made_up["points"] if engine == "deepspeed"} == before
