"""The accuracy table: tasks, what is simpler, and intervals that hold what they say."""

import json

import numpy as np
import pytest

from scaling.errors import InputError
from scaling.foreign.columns import Columns
from scaling.foreign.reading import read_table
from scaling.predict.fit.accuracy import (
    SHIPPED,
    Task,
    accuracy_of,
    baseline_table_of,
    shipped_tasks,
    table_of,
    tasks_of,
)
from scaling.predict.fit.baselines import (
    boosted_trees,
    neighbour_scaled,
    rule_regrets,
    trees_available,
)
from scaling.predict.fit.rivals import layout_numbers, settings_of
from scaling.predict.read.observed import observed_of
from scaling.predict.read.points import points_of
from tests.predict import reference
from tests.predict.conftest import table_of as rows_of

pytestmark = pytest.mark.slow

needs_trees = pytest.mark.skipif(not trees_available(), reason="scikit-learn is not installed")


def read(*rows):
    columns = Columns(rows_of(*rows), "t")
    return points_of(columns), observed_of(columns)


def test_a_neighbour_is_scaled_by_the_work_of_a_gpu():
    near = {"dp": 8, "micro_batch_size": 1, "step_time_s": 2.0, "outcome": "ok"}
    wide = {**near, "tp": 4, "dp": 2, "step_time_s": 50.0}
    # twice the sequences on as many GPUs are twice the work
    asked = {**near, "gradient_accumulation_steps": 2, "step_time_s": None}
    points, observed = read(near, wide, asked)
    fitted = np.array([True, True, False])
    found = neighbour_scaled(points, observed, fitted, ~fitted)
    assert found[2] == pytest.approx(4.0)
    assert np.isnan(found[:2]).all()
    assert np.isnan(neighbour_scaled(points, observed, np.zeros(3, dtype=bool), ~fitted)).all()


@needs_trees
def test_trees_learn_the_step_of_a_layout_from_others_like_it(sweep_csv):
    columns = Columns(read_table(sweep_csv), "t")
    points, observed = points_of(columns), observed_of(columns)
    fitted = np.arange(len(points)) % 2 == 0
    wanted = ~fitted & observed.timed
    found = boosted_trees(points, observed, fitted, wanted)[wanted]
    assert np.median(np.abs(found / observed.step_time_s[wanted] - 1)) < 0.1


def test_the_rule_picks_tp_4_without_a_pipeline_and_the_largest_micro_batch():
    shared = {"outcome": "ok", "world_size": 8}
    rows = [
        {**shared, "tp": 4, "dp": 2, "micro_batch_size": 2, "step_time_s": 1.5},
        {**shared, "tp": 4, "dp": 2, "micro_batch_size": 1, "step_time_s": 1.2,
         "gradient_accumulation_steps": 2},
        {**shared, "tp": 2, "dp": 4, "micro_batch_size": 1, "step_time_s": 1.0},
        {**shared, "tp": 4, "pp": 2, "dp": 1, "micro_batch_size": 4, "step_time_s": 0.9},
    ]  # fmt: skip
    for some, picked in ((rows, 1.5), (rows[2:], 1.0)):
        points, observed = read(*some)
        layouts = layout_numbers(points)
        settings = settings_of(points, layouts, observed.step_time_s, observed.timed)
        assert rule_regrets(points, settings) == [pytest.approx(picked / 0.9 - 1)]


def test_every_shipped_task_has_rows_and_a_name_of_its_own():
    tasks = shipped_tasks()
    assert len({task.name for task, _ in tasks}) == len(SHIPPED)
    assert all(table.num_rows for _, table in tasks)


def test_tables_of_a_folder_become_their_known_tasks_and_others_two(sweep_csv, tmp_path):
    (tmp_path / "mpt_zero3.csv").write_bytes(sweep_csv.read_bytes())
    (tmp_path / "mine.csv").write_bytes(sweep_csv.read_bytes())
    names = [task.name for task, _ in tasks_of(tmp_path)]
    assert names[:2] == ["mine: data sheets", "mine: calibrated on hash(row_index) % 2 = 0"]
    assert len(names) == 5


# What was made by the step model of tests/predict/reference.py, and what each part predicts of it.
@pytest.mark.parametrize(
    "where",
    [
        "hash(row_index) % 2 = 0",
        "world_size < 32",
        # a model never seen: a fit is followed in part, and the interval holds the way it leaves
        "model != 'ref-7b'",
    ],
)
def test_intervals_of_a_sweep_hold_what_was_held_back(sweep_csv, where):
    task = Task(name="sweep", table="sweep", calibrate_where=where)
    line = accuracy_of(task, read_table(sweep_csv))
    # 8 in 10, and no fewer: where a fold is small they are wider
    assert line.scores.coverage_80 > 0.7
    assert line.scores.coverage_80_ratios > 0.7
    assert line.scores.step_time["mape"] < line.baselines["data sheet"].mape
    assert line.scores.step_time["mape"] < line.baselines["nearest neighbour"].mape
    json.dumps(line.to_dict(), allow_nan=False)


def test_intervals_do_not_hold_everything_by_being_wide(tmp_path):
    # a random half of a sweep whose repeats differ by 8 %: the error is the noise, and is known
    rows = reference.rows(seed=3, noise=0.08)
    table = read_table(reference.write_csv(tmp_path / "noisy.csv", rows))
    task = Task(name="noisy", table="noisy", calibrate_where="hash(row_index) % 2 = 0")
    scores = accuracy_of(task, table).scores
    # of 93 rows right intervals cover 80 % give or take 4 points
    assert 0.68 < scores.coverage_80 < 0.92
    assert 0.7 < scores.coverage_80_ratios < 0.9


def test_a_task_without_a_timed_row_shows_dashes():
    table = rows_of({"dp": 8, "outcome": "oom", "micro_batch_size": 64})
    line = accuracy_of(Task(name="none ran", table="t"), table)
    heads, row = table_of([line])
    shown = dict(zip(heads, row, strict=True))
    assert (shown["MAPE"], shown["regret"], shown["ratios covered"]) == ("–", "–", "–")
    assert shown["false fits"].endswith("%")
    assert baseline_table_of([line])[1][1] == "– / –"


def test_a_condition_that_leaves_nothing_is_refused(sweep_csv):
    task = Task(name="sweep", table="sweep", test_where="world_size > 100000")
    with pytest.raises(InputError, match="no row is left to test"):
        accuracy_of(task, read_table(sweep_csv))
