"""The errors of neighbours, on top of the formulas."""

import dataclasses

import numpy as np
import pytest

from scaling.importing.reader import read_table
from scaling.predict.cost.model import predict
from scaling.predict.fit.calibrate import calibrate
from scaling.predict.read.observed import observed_of
from scaling.predict.read.points import points_of
from scaling.predict.read.residual import Residual
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
