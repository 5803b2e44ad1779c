"""How wide an interval is, worked by hand of a made calibration."""

from typing import Any

import numpy as np
import pytest

from scaling.predict.cost.interval import Spread, error_spread
from scaling.predict.read.calibration import AXES, Z_80, Band, StackCalibration
from scaling.predict.read.trust import new_values

SEEN = {
    "world_size": (8.0, 32.0),
    "seq_length": (4096.0,),
    "model": ("llama-7b",),
    "hidden_size": (4096.0,),
}


def stack(**bands: Band) -> StackCalibration:
    return StackCalibration(
        framework="t", cluster="c", rows_timed=20, rows_out_of_memory=0, rows_with_peak_memory=0,
        parameters={}, bands=bands, seen=SEEN,
    )  # fmt: skip


def band(own: float | None, shared: float | None) -> Band:
    return Band(low=-0.1, high=0.1, rows=10, own=own, shared=shared)


def spread_of(
    calibrated: StackCalibration | None, roughness: float = 1.0, **changes: Any
) -> Spread:
    """Of one layout of what was calibrated in `stack`, but for these changes."""
    values = {"world_size": 32.0, "seq_length": 4096.0, "model": "llama-7b", "hidden_size": 4096.0}
    values |= {"gpus_per_node": 8.0, "experts": False} | changes
    names = ("unknown_software", "lean_kernels")
    flags = {name: values.pop(name) for name in names if name in values}
    arrays = {name: np.array([value]) for name, value in values.items()}
    axes = {name: arrays.pop(name) for name in AXES}
    beyond = arrays.pop("beyond", np.zeros(1))
    return error_spread(
        np.array([1.0]), np.array([roughness]), calibrated,
        new=new_values(calibrated, axes, beyond) if calibrated else {},
        world_size=axes["world_size"], **flags, **arrays,
    )  # fmt: skip


def parts(calibrated: StackCalibration, **values: Any) -> tuple[float, float]:
    """A layout's own part and the one its size shares."""
    found = spread_of(calibrated, **values)
    return float(found.own_sigma[0]), float(found.size_sigma[0])


def test_a_size_twice_doubled_shares_the_root_of_two_and_keeps_the_wider_own_part():
    made = stack(interpolation=band(0.06, 0.02), world_size=band(0.03, 0.05))
    assert parts(made) == pytest.approx((0.06, 0.02))
    larger = (0.06 * (1 + 0.05 * 2), np.hypot(0.02, 0.05 * np.sqrt(2)))
    assert parts(made, world_size=128.0) == pytest.approx(larger)
    between = (0.06, np.hypot(0.02, 0.05))  # a size within the data is new too
    assert parts(made, world_size=16.0) == pytest.approx(between)


def test_an_own_part_grows_with_nodes_whichever_axis_it_is_taken_of():
    made = stack(interpolation=band(0.05, 0.0), world_size=band(0.05, 0.0), model=band(0.1, 0.0))
    own, _ = parts(made, world_size=128.0, model="llama-70b")
    assert own == pytest.approx(0.1 * (1 + 0.05 * 2))


def test_an_own_part_grows_with_nodes_not_with_the_gpus_of_one():
    made = stack(interpolation=band(0.06, 0.02), world_size=band(0.03, 0.05))
    own, _ = parts(made, world_size=128.0, gpus_per_node=64.0)
    assert own == pytest.approx(0.06 * 1.05)


def test_beyond_all_layouts_calibrated_one_is_off_as_folds_that_left_layouts_out_were():
    made = stack(interpolation=band(0.06, 0.02))
    assert parts(made, beyond=1.0) == pytest.approx((0.08, 0.02))  # before any fold tells
    made = stack(interpolation=band(0.06, 0.02), layout=band(0.11, 0.03))
    assert parts(made) == pytest.approx((0.06, 0.02))
    assert parts(made, beyond=3.0) == pytest.approx((0.11, 0.02))


def test_a_fit_followed_in_part_is_off_as_rows_held_back_were_at_that_trust():
    made = stack(**{"interpolation": band(0.04, 0.02), "interpolation at 0": band(0.12, 0.05)})
    assert parts(made, trust=0.0)[0] == pytest.approx(0.12)
    assert parts(made, trust=1.0)[0] == pytest.approx(0.04)


def test_what_no_row_depends_on_is_a_layouts_own_error():
    made = stack(interpolation=band(0.06, 0.02))
    assert parts(made, unfitted=0.08)[0] == pytest.approx(0.1)


def test_of_an_older_calibrations_band_nearly_all_is_the_layouts_own():
    own, size = parts(stack(interpolation=band(None, None)))
    assert own == pytest.approx(0.85 * 0.2 / (2 * Z_80))
    assert size == pytest.approx(0.016)
