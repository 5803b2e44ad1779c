"""How wide an interval is, worked by hand of a made calibration."""

import numpy as np
import pytest

from scaling.predict.cost.interval import spread_of
from scaling.predict.read.calibration import EIGHTY, Band, StackCalibration

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


def parts(calibrated: StackCalibration, **values) -> tuple[float, float]:
    """A layout's own part and the one its size shares."""
    row = {"world_size": 32.0, "seq_length": 4096.0, "model": "llama-7b", "hidden_size": 4096.0}
    row |= {"gpus_per_node": 8.0, "experts": False} | values
    arrays = {name: np.array([value]) for name, value in row.items()}
    axes = {name: arrays.pop(name) for name in SEEN}
    spread = spread_of(np.array([1.0]), np.array([1.0]), calibrated, axes=axes, **arrays)
    return float(spread.own_sigma[0]), float(spread.size_sigma[0])


def test_a_size_twice_doubled_shares_the_root_of_two_and_keeps_the_wider_own_part():
    made = stack(interpolation=band(0.06, 0.02), world_size=band(0.03, 0.05))
    assert parts(made) == pytest.approx((0.06, 0.02))
    larger = (0.06 * (1 + 0.05 * 2), np.hypot(0.02, 0.05 * np.sqrt(2)))
    assert parts(made, world_size=128.0) == pytest.approx(larger)
    between = (0.06, np.hypot(0.02, 0.05))  # a size within the data is new too
    assert parts(made, world_size=16.0) == pytest.approx(between)


def test_an_own_part_grows_with_nodes_not_with_the_gpus_of_one():
    made = stack(interpolation=band(0.06, 0.02), world_size=band(0.03, 0.05))
    own, _ = parts(made, world_size=128.0, gpus_per_node=64.0)
    assert own == pytest.approx(0.06 * 1.05)


def test_beyond_two_doublings_or_switches_a_layout_is_no_less_sure():
    made = stack(interpolation=band(0.06, 0.02))
    for beyond, counted in ((1.0, 1.0), (2.0, 2.0), (5.0, 2.0)):
        own, _ = parts(made, beyond=beyond)
        assert own == pytest.approx(np.hypot(0.06, 0.06 * counted))


def test_of_an_older_calibrations_band_nearly_all_is_the_layouts_own():
    own, size = parts(stack(interpolation=band(None, None)))
    assert own == pytest.approx(0.85 * 0.2 / (2 * EIGHTY))
    assert size == pytest.approx(0.016)
