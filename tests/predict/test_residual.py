"""What neighbours are off by, on top of the formulas: confirmed by folds, or left out."""

import dataclasses
import json

import numpy as np
import pytest

from scaling.errors import InputError
from scaling.foreign.columns import Columns
from scaling.foreign.reading import read_table
from scaling.predict.cost.model import predict
from scaling.predict.fit.calibrate import calibrate
from scaling.predict.read import residual as process
from scaling.predict.read.calibration import read_calibration
from scaling.predict.read.observed import observed_of
from scaling.predict.read.points import points_of
from scaling.predict.read.residual import (
    NAMES,
    NOISES,
    chosen_noise,
    fitted_residual,
    is_improvement,
    places_of,
)
from scaling.predict.read.trust import expected_residual
from tests.predict import reference

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def odd_sweep(tmp_path_factory):
    """Rows of the reference machine whose two-stage pipelines take a fifth longer."""
    rows = reference.rows()
    for row in rows:
        if row["step_time_s"] and int(row["pp"]) == 2:
            row["step_time_s"] = 1.2 * float(row["step_time_s"])
    return read_table(reference.write_csv(tmp_path_factory.mktemp("odd") / "odd.csv", rows))


@pytest.fixture(scope="module")
def odd(odd_sweep):
    """(points, observed, which rows were calibrated on, the calibration)."""
    columns = Columns(odd_sweep, "odd")
    fitted = np.arange(len(columns)) % 2 == 0
    part = columns.filter(fitted)
    calibration = calibrate(points_of(part), observed_of(part), source="odd")
    return points_of(columns), observed_of(columns), fitted, calibration


def stack_of(calibration):
    (stack,) = calibration.stacks.values()
    return stack


def without(calibration):
    bare = {k: dataclasses.replace(s, residual=None) for k, s in calibration.stacks.items()}
    return dataclasses.replace(calibration, stacks=bare)


def test_a_process_gives_back_what_it_saw_and_nothing_far_away():
    places = np.zeros((3, len(NAMES)))
    places[:, 0] = [0.0, 0.5, 40.0]
    residual = fitted_residual(places[:2], np.array([0.1, 0.1]))
    assert residual.at(places[:2]) == pytest.approx(0.095, abs=0.01)
    assert residual.at(places[2:]) == pytest.approx(0.0, abs=1e-12)


def test_a_stalled_step_says_nothing_of_its_neighbours():
    places = np.zeros((2, len(NAMES)))
    calm = fitted_residual(places[:1], np.array([0.1])).at(places)
    assert fitted_residual(places, np.array([0.1, 3.0])).at(places).tolist() == calm.tolist()
    assert fitted_residual(places, np.array([3.0, 3.0])).at(places).tolist() == [0.0, 0.0]


def test_of_more_rows_than_are_kept_those_that_stand_for_all_follow_all(monkeypatch):
    random = np.random.default_rng(0)
    places = np.zeros((300, len(NAMES)))
    places[:, :3] = random.integers(0, 4, (300, 3)) * 0.4
    log_residual = 0.1 * np.sin(places[:, 0]) + 0.1 * places[:, 1] + random.normal(0, 0.01, 300)
    every = fitted_residual(places, log_residual)
    monkeypatch.setattr(process, "_MOST_KEPT", 40)
    fewer = fitted_residual(places, log_residual)
    assert (len(every.places), len(fewer.places)) == (300, 40)
    assert fewer.at(places) == pytest.approx(every.at(places), abs=0.02)
    # 64 places differ: more of them than that say nothing new
    monkeypatch.setattr(process, "_MOST_KEPT", 200)
    assert len(fitted_residual(places, log_residual).places) <= 64


def test_the_noise_is_another_only_where_rows_held_back_are_clearly_better_off():
    off = dict.fromkeys(NOISES, np.array([0.1, -0.1]))
    assert chosen_noise(off) == NOISES[0]
    assert chosen_noise(off | {NOISES[1]: np.array([0.1, -0.099])}) == NOISES[0]
    assert chosen_noise(off | {NOISES[1]: np.array([0.08, -0.09])}) == NOISES[1]


def test_where_a_row_is_new_folds_may_forbid_neighbours_and_need_not_confirm_them(odd):
    stack = stack_of(odd[3])
    # one sequence length: no fold could leave one out
    assert stack.seen["seq_length"] == (2048.0,)
    assert "seq_length" in stack.residual.holds_in


def test_layouts_beside_calibrated_ones_take_over_what_those_are_off_by(odd):
    points, observed, fitted, calibration = odd
    assert "interpolation" in stack_of(calibration).residual.holds_in
    held = ~fitted & observed.timed
    off = {
        name: np.abs(predict(points, one).step_time_s / observed.step_time_s - 1)[held].mean()
        for name, one in (("with", calibration), ("without", without(calibration)))
    }
    assert off["with"] < 0.8 * off["without"]


def test_the_terms_of_a_step_still_add_up(odd):
    points, _, _, calibration = odd
    found = predict(points, calibration)
    assert sum(found.time_terms.values()) == pytest.approx(found.step_time_s)


def test_a_row_that_is_new_where_no_fold_confirmed_it_is_left_to_the_formulas(odd):
    points, _, _, calibration = odd
    (group,) = points.groups
    stack = stack_of(calibration)
    new = {"model": np.zeros(2, dtype=bool), "seq_length": np.array([False, True])}
    places = places_of(group.features)[[0, 0]]
    residual = dataclasses.replace(stack.residual, holds_in=("interpolation",))
    stack = dataclasses.replace(stack, residual=residual)
    shown = expected_residual(stack, new, np.ones(2), places)
    assert shown[0] != 0.0
    assert shown[1] == 0.0
    half = expected_residual(stack, new, np.full(2, 0.5), places)
    assert half[0] == pytest.approx(shown[0] / 2)


def test_what_does_not_help_held_back_rows_is_no_part_of_a_calibration(tmp_path):
    # repeats that differ by 8 % and a machine the formulas know: neighbours tell nothing
    rows = reference.rows(seed=3, noise=0.08)
    columns = Columns(read_table(reference.write_csv(tmp_path / "noisy.csv", rows)), "noisy")
    calibration = calibrate(points_of(columns), observed_of(columns), source="noisy")
    assert stack_of(calibration).residual is None
    assert is_improvement(np.array([0.1, -0.1]), np.array([0.09, -0.1]))
    assert not is_improvement(np.array([0.1, -0.1]), np.array([0.099, -0.1]))


@pytest.mark.parametrize(
    "change",
    [
        lambda residual: residual.update(names=["tp"]),
        lambda residual: residual["weights"].pop(),
        lambda residual: residual["places"][0].pop(),
        lambda residual: residual["weights"].__setitem__(0, float("nan")),
    ],
)
def test_a_file_with_another_residual_is_one_sentence(tmp_path, odd, change):
    record = json.loads(odd[3].to_json())
    (stack,) = record["stacks"].values()
    change(stack["residual"])
    (tmp_path / "c.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match="residual is none that fits this program; calibrate"):
        read_calibration(tmp_path / "c.json")
