"""Scores of predictions, worked by hand; they do not depend on the order of rows."""

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from scaling.cli.prediction import calibrate
from scaling.errors import InputError
from scaling.predict.cost.model import predict
from scaling.predict.fit.validation import layout_numbers, settings_of, trial, validate
from scaling.predict.read.observed import observed_of
from scaling.predict.read.points import points_of
from scaling.published.table import published_table
from tests.predict.conftest import as_table, table_of


def scores(rows, step_time_s, **memory):
    """Scores of given predictions: the rows' own, with the arrays named replaced."""
    columns = as_table(table_of(*rows), "t")
    points = points_of(columns)
    prediction = predict(points)
    prediction.step_time_s[:] = step_time_s
    prediction.risk_adjusted_s[:] = step_time_s
    prediction.low[:] = 0.9 * prediction.step_time_s
    prediction.high[:] = 1.1 * prediction.step_time_s
    prediction.need_bytes[:] = 1.0
    for name, values in memory.items():
        getattr(prediction, name)[:] = values
    everything = np.ones(len(points), dtype=bool)
    return validate(points, observed_of(columns), prediction, everything)


def measured(*seconds, **more):
    """Rows of layouts that differ, which what is predicted here does not."""
    return [
        {"dp": 8, "vocab_size": 32000 + i, "outcome": "ok", "step_time_s": s, **more}
        for i, s in enumerate(seconds)
    ]


def own(sigma):
    return {"layout_sigma": [0.0] * 3, "rest_sigma": [sigma] * 3}


@pytest.mark.parametrize(
    ("rows", "seconds", "arrays", "told"),
    [
        # errors are relative to the measurement
        (measured(1.0, 2.0, 4.0), [1.1, 1.0, 4.0], {},
            {"mape": (0.1 + 0.5 + 0) / 3, "median_ape": 0.1, "max_ape": 0.5,
             "rms": ((0.01 + 0.25) / 3) ** 0.5, "bias": (0.1 - 0.5) / 3, "rank_correlation": 0.5,
             "covered": 2 / 3}),
        # regret is the slow-down of the layouts picked
        (measured(1.0, 1.3, 2.0, 1.2), [4.0, 2.0, 3.0, 3.5], {},
            {"regret mean": 0.3, "regret median": 0.3, "regret max": 0.3, "regret groups": 1}),
        # all 40 % slower than predicted: no step time is inside its interval, every ratio is
        (measured(1.4, 2.8, 4.2), [1.0, 2.0, 3.0], own(0.01), {"covered": 0, "ratios covered": 1}),
        # ln(1.1) = 0.095 is outside of 1.28 sqrt(2) 0.05 = 0.09, inside of 1.28 sqrt(2) 0.06 = 0.11
        (measured(1.0, 1.0, 1.1), [1.0] * 3, own(0.05), {"ratios covered": 1 / 3}),
        (measured(1.0, 1.0, 1.1), [1.0] * 3, own(0.06), {"ratios covered": 1}),
        # picked: 1.5 of 1.0, and 2.0 of 2.0; the row on 16 GPUs has no rival
        (measured(1.0, 1.5) + measured(9.0, 2.0, seq_length=2048) + measured(7.0, tp=2),
            [2.0, 1.0, 9.0, 2.0, 1.0], {},
            {"regret groups": 2, "regret mean": 0.25, "sizes": [8, 16]}),
        # nor do layouts of other routings
        (measured(1.0, 1.3) + measured(2.0, 2.6, routing="skewed:4"), [3.0, 2.0, 1.0, 4.0], {},
            {"regret groups": 2, "regret mean": 0.15}),
        # a layout that would be refused is not picked
        (measured(1.0, 5.0), [2.0, 1.0],
            {"need_bytes": [1.0, 2.0], "capacity_bytes": [1.0, 1.0]}, {"regret mean": 0}),
        # both mistakes about memory count
        ([{"dp": 8, "outcome": o} for o in ("ok", "ok", "ok", "ok", "oom", "oom_or_crash")],
            [1.0] * 6, {"need_bytes": [1, 1, 1, 3, 1, 3], "capacity_bytes": [2.0] * 6},
            {"false_oom_rate": 0.25, "false_fit_rate": 0.5, "ran_fits": 3,
             "balanced_accuracy": 1 - (0.25 + 0.5) / 2}),
        # what cannot be said is null
        ([{"dp": 8, "outcome": "oom"}], [1.0], {},
            dict.fromkeys(("mape", "regret mean", "balanced_accuracy", "covered"))),
    ],
)  # fmt: skip
def test_scores_are_as_worked_by_hand(rows, seconds, arrays, told):
    overall, groups = scores(rows, seconds, **arrays)
    found = {**overall.step_time, **overall.memory, "covered": overall.coverage_80}
    found |= {f"regret {name}": value for name, value in overall.regret.items()}
    found |= {"ratios covered": overall.coverage_80_ratios}
    found |= {"sizes": [key["world_size"] for key, _ in groups]}
    assert {name: found[name] for name in told} == {
        name: value if value is None else pytest.approx(value) for name, value in told.items()
    }


def test_rows_in_both_parts_are_named_as_what_they_are():
    table = table_of(*measured(1.0, 1.1, 1.2))
    found = trial(as_table(table, "t"), calibrate_where="true", test_where="true")
    assert any("3 rows are in both parts" in note for note in found.notes)


@pytest.mark.parametrize("rows", [[], [{"dp": 8}], [{"dp": 8, "outcome": "error"}]])
def test_rows_that_say_nothing_of_step_or_memory_are_refused(rows):
    table = table_of(*rows) if rows else table_of({"dp": 8}).slice(0, 0)
    with pytest.raises(InputError, match=r"^t: (holds no row|none of the 1 rows to test ran)"):
        trial(as_table(table, "t"))


@pytest.mark.slow
def test_a_calibration_is_the_same_file_in_whichever_order_its_rows_came(tmp_path):
    table, made = published_table(), set()
    table = table.filter(pc.equal(table["table"], "moe_zoo"))
    for seed in range(3):
        shuffled = table.take(np.random.default_rng(seed).permutation(table.num_rows))
        pq.write_table(shuffled, tmp_path / "rows.parquet")
        calibrate(tmp_path / "rows.parquet", tmp_path / "calibration.json")
        made.add((tmp_path / "calibration.json").read_bytes())
    assert len(made) == 1


def runs(*steps_s, **layout):
    return [{"outcome": "ok", "dp": 8, "step_time_s": step, **layout} for step in steps_s]


@pytest.mark.slow
def test_repeats_of_a_layout_are_one_rival_with_their_median():
    columns = as_table(table_of(*runs(1.0, 9.0, 3.0, zero_stage=1), *runs(2.0, 4.0)), "t")
    points, observed = points_of(columns), observed_of(columns)
    rows = np.flatnonzero(observed.timed)
    ((layouts, step_s),) = settings_of(points, layout_numbers(points), observed.step_time_s, rows)
    assert sorted(step_s.tolist()) == [3.0, 3.0]
    assert len(layouts) == 2


@pytest.mark.slow
def test_a_layout_alone_has_no_ratios_however_often_it_ran():
    for count in (3, 300):
        found = trial(as_table(table_of(*runs(*np.linspace(1, 2, count))), "t"))
        assert found.overall.regret["groups"] == 0
        assert found.overall.coverage_80_ratios is None


@pytest.mark.slow
def test_very_many_layouts_of_a_setting_are_scored_by_some_of_them():
    rows = runs(*[1.0] * 2500)
    rows = [{**row, "vocab_size": 32000 + number} for number, row in enumerate(rows)]
    assert trial(as_table(table_of(*rows), "t")).overall.coverage_80_ratios == 1.0


def test_only_the_rows_asked_for_are_calibrated_on():
    predicted_s = []
    for tested in (18.0, 27.0):
        table = as_table(table_of(*measured(9.0, 9.0, tested, tested)), "t")
        found = trial(table, calibrate_where="step_time_s < 10")
        assert (found.calibrated_rows, found.tested_rows) == (2, 2)
        predicted_s.append((1 + found.overall.step_time["bias"]) * tested)
    assert predicted_s[0] == pytest.approx(predicted_s[1])
