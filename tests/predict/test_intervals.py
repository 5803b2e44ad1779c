"""How wide an interval is around what a calibration predicts, and how often it holds."""

import json

import numpy as np
import pyarrow.compute as pc
import pytest

from scaling.foreign.columns import Columns
from scaling.predict.cost.interval import distance_beyond
from scaling.predict.fit.bands import HeldOut, band_of
from scaling.predict.fit.trial import trial
from scaling.predict.read.calibration import read_calibration
from scaling.predict.read.points import points_of
from tests.predict.conftest import fitted_on, only
from tests.predict.test_spread import spread_of

pytestmark = pytest.mark.slow


def spread(stack, roughness=1.0, **changes):
    """Of a layout of the sweep, but for these changes."""
    sizes = {"seq_length": 2048.0, "model": "ref-3b", "hidden_size": 2560.0}
    return spread_of(stack, roughness, **sizes | changes)


def band_width(stack, **new) -> float:
    found = spread(stack, **new)
    return float(found.high[0] / found.low[0])


def test_intervals_widen_with_the_distance_from_what_was_calibrated(calibrated):
    stack = only(calibrated)
    widths = [band_width(stack, world_size=size) for size in (32.0, 64.0, 256.0, 2048.0)]
    assert widths == sorted(set(widths))
    assert band_width(stack, seq_length=8192.0) > band_width(stack)
    assert band_width(stack, hidden_size=8192.0, model="new") > band_width(stack)
    assert band_width(None) > band_width(stack)


def test_what_a_new_sequence_length_shares_leaves_ratios_alone(calibrated):
    stack = only(calibrated)
    seen, longer = spread(stack), spread(stack, seq_length=8192.0)
    assert longer.size_sigma == seen.size_sigma
    larger = spread(stack, world_size=256.0)
    assert larger.size_sigma > seen.size_sigma


def test_a_fit_that_is_followed_in_part_may_be_right_after_all(calibrated):
    stack = only(calibrated)
    values = {"hidden_size": 8192.0, "model": "new"}
    wide = spread(stack, **values, unfollowed=0.2)
    # the whole fit's step lies inside, and it moves all layouts of a model alike
    assert wide.high[0] > np.exp(0.2)
    assert wide.own_sigma == spread(stack, **values).own_sigma


def test_a_model_with_experts_is_less_sure_from_data_sheets_alone():
    assert band_width(None, experts=True) > 1.1 * band_width(None)
    assert spread(None, experts=True).own_sigma > spread(None).own_sigma


def test_software_unheard_of_is_less_sure_of_its_data_sheets_most_before_hopper():
    for lean, wider in ((False, 1.3), (True, 1.05)):
        unknown, known = (
            band_width(None, unknown_software=is_unknown, lean_kernels=lean)
            for is_unknown in (True, False)
        )
        assert np.log(unknown) > wider * np.log(known)
    # the layouts of a size are compared nearly as surely: most of it they share
    assert spread(None, unknown_software=True).own_sigma < 1.2 * spread(None).own_sigma


def test_a_layout_that_waits_for_its_tensor_parallel_ranks_is_less_sure(calibrated):
    stack = only(calibrated)
    assert spread(stack, roughness=3.0).own_sigma == pytest.approx(3 * spread(stack).own_sigma)


def test_a_layout_beyond_all_calibrated_ones_is_less_sure(sweep):
    stack = only(fitted_on(sweep.filter(pc.equal(sweep["tp"], 1))))
    points = points_of(Columns(sweep, "sweep"))
    (group,) = points.groups
    beyond = distance_beyond(group.features, stack.seen)
    tp = group.features.tp
    assert beyond[tp == 1].max() == 0
    assert beyond[tp == 2] == pytest.approx(1)  # doublings
    assert beyond[tp == 4] == pytest.approx(2)
    near, far = (spread(stack, beyond=d) for d in (0.0, 2.0))
    assert far.own_sigma > near.own_sigma
    assert far.own_sigma == pytest.approx(stack.bands["layout"].own)  # of other layouts left out


def test_intervals_hold_layouts_that_no_calibrated_row_is_like(sweep):
    """The fit on rows without tensor parallelism says nothing of what its collectives cost."""
    table = sweep.filter(pc.less_equal(sweep["tp"], 2))
    found = trial(table, "sweep", calibrate_where="tp = 1").overall
    assert found.coverage_80 is not None
    assert found.coverage_80 >= 0.6


def held_back(own, shared, *, settings=40, rows=50, seed=1):
    draw = np.random.default_rng(seed)
    setting = np.repeat(np.arange(settings), rows)
    off = draw.normal(0, shared, settings)[setting] + draw.normal(0, own, settings * rows)
    return HeldOut(
        log_residual=off,
        roughness=np.ones(len(off)),
        distance_beyond=np.zeros(len(off)),
        setting=setting.astype(object),
    )


@pytest.mark.parametrize(("own", "shared"), [(0.1, 0.0), (0.03, 0.2), (0.2, 0.05)])
def test_the_error_of_a_layout_is_told_from_what_its_size_shares(own, shared):
    band = band_of("model", [held_back(own, shared, seed=seed) for seed in range(4)])
    assert band.own == pytest.approx(own, rel=0.1)
    # a fold's worth of what published tables show, 0.05, beside four folds
    assert band.shared == pytest.approx((4 * shared + 0.05) / 5, rel=0.15, abs=0.005)


@pytest.mark.parametrize(("rows", "own"), [(10, 0.2), (2000, 0.2), (10, 0.01), (2000, 0.01)])
def test_few_rows_move_a_layouts_own_error_a_little_many_all_of_the_way(rows, own):
    band = band_of("interpolation", [held_back(own, 0.0, settings=1, rows=rows)])
    assert band.own is not None
    way = (band.own - 0.055) / (own - 0.055)
    assert (0.9 < way < 1.1) if rows == 2000 else (0.1 < way < 0.6)


def test_a_band_holds_eight_of_ten_residuals():
    residuals = held_back(0.1, 0.0, settings=1, rows=5000)
    band = band_of("interpolation", [residuals])
    inside = (residuals.log_residual > band.low) & (residuals.log_residual < band.high)
    assert inside.mean() == pytest.approx(0.8, abs=0.02)
    assert band.rows == 5000


def test_a_calibration_that_does_not_tell_own_errors_apart_is_read(tmp_path, calibrated):
    record = json.loads(calibrated.to_json())
    for stack in record["stacks"].values():
        for band in stack["bands"].values():
            del band["own"], band["shared"]
    (tmp_path / "c.json").write_text(json.dumps(record))
    old = spread(only(read_calibration(tmp_path / "c.json")))
    assert 0 < old.own_sigma < np.log(old.high)
