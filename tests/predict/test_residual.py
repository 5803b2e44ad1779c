"""The errors of neighbours, on top of the formulas."""

import dataclasses

import numpy as np
import pytest

from scaling.importing.reader import read_table
from scaling.predict.cost.model import predict
from scaling.predict.fit.calibrate import calibrate
from scaling.predict.read.observed import observed_of
from scaling.predict.read.points import points_of
from scaling.predict.read.residual import NAMES, Residual, fitted_residual
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
    fitted = np.arange(odd_sweep.rows.num_rows) % 2 == 0
    part = odd_sweep.filter(fitted)
    calibration = calibrate(points_of(part), observed_of(part), source="odd")
    return points_of(odd_sweep), observed_of(odd_sweep), fitted, calibration


def without(calibration):
    none = Residual(places=(), weights=())
    bare = {k: dataclasses.replace(s, residual=none) for k, s in calibration.stacks.items()}
    return dataclasses.replace(calibration, stacks=bare)


def test_a_process_gives_back_what_it_saw_and_nothing_far_away():
    places = np.zeros((3, len(NAMES)))
    places[:, 0] = [0.0, 0.5, 40.0]
    residual, _ = fitted_residual(places[:2], np.array([0.1, 0.1]))
    (*near, far), (*known, novel) = residual.at(places)
    assert near == pytest.approx([0.095] * 2, abs=0.01)
    assert known == pytest.approx([0.0] * 2, abs=0.03)
    assert (far, novel) == (pytest.approx(0.0, abs=1e-12), pytest.approx(1.0))


def test_rows_left_out_one_at_a_time_have_the_errors_of_a_fit_without_them():
    random = np.random.default_rng(0)
    places = np.zeros((6, len(NAMES)))
    places[:, :2] = random.normal(0, 0.7, (6, 2))
    off = random.normal(0, 0.1, 6)
    _, left_out = fitted_residual(places, off)
    for row in range(6):
        rest = np.arange(6) != row
        without, _ = fitted_residual(places[rest], off[rest])
        expected = off[row] - without.at(places[row : row + 1])[0][0]
        assert left_out[row] == pytest.approx(expected, abs=0.01)


def test_a_stalled_step_says_nothing_of_its_neighbours():
    places = np.zeros((2, len(NAMES)))

    def expected(rows, off):
        return fitted_residual(rows, np.array(off))[0].at(places)[0].tolist()

    assert expected(places, [0.1, 3.0]) == expected(places[:1], [0.1])
    assert expected(places, [3.0, 3.0]) == [0.0, 0.0]


def test_layouts_beside_calibrated_ones_take_over_what_those_are_off_by(odd):
    points, observed, fitted, calibration = odd
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
