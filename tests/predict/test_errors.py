"""The four parts of a prediction's error, what a calibration moves, and learned stalls."""

import numpy as np
import pytest

from scaling.cluster.hardware import Cluster
from scaling.predict.cost.interval import (
    CALIBRATED,
    DATA_SHEETS,
    Z_80,
    chance_faster,
    errors_of,
    learned_errors,
)
from scaling.predict.cost.links import ring_bus, tp_bus
from scaling.predict.cost.memory import memory_of
from scaling.predict.cost.model import predict
from scaling.predict.cost.prediction_tables import prediction_table
from scaling.predict.cost.risk import STALL_S, Stalls, stalls_of
from scaling.predict.cost.step import step_of
from scaling.predict.fit.fitting import fit_stalls
from scaling.predict.read.calibration import PARTS, Calibration, Fitted, StackCalibration
from scaling.predict.read.parameters import PARAMETERS, STALL_ODDS
from scaling.predict.read.residual import Residual
from tests.predict.conftest import checked, fitted_on, table_of


def calibrated(group, *, generation="ampere", cluster=None, **values):
    """A calibration of one stack that moved some parameters from where they began."""
    parameters = {
        name: Fitted(
            value=values.get(name, group.start[name]), low=known.low, high=known.high,
            identified=name in values, reason="", start=group.start[name],
        )
        for name, known in PARAMETERS.items()
    }  # fmt: skip
    stack = StackCalibration(
        framework=group.framework, cluster=cluster or group.cluster_name, generation=generation,
        rows_timed=20, rows_out_of_memory=0, rows_with_peak_memory=0, parameters=parameters,
        ranges={"world_size": (8, 8), "seq_length": (4096, 4096), "hidden_size": (4096, 4096)},
        errors=CALIBRATED, residual=Residual(places=(), weights=()),
    )  # fmt: skip
    return Calibration(source="t", stacks={f"{group.framework}|{stack.cluster}": stack})


def test_an_interval_is_made_of_the_four_parts(points):
    found = predict(points({"dp": 8}, {"tp": 4, "dp": 2}))
    squares = sum(getattr(found, f"{part}_sigma") ** 2 for part in PARTS)
    assert np.log(found.high / found.step_time_s) == pytest.approx(Z_80 * np.sqrt(squares))
    assert np.log(found.step_time_s / found.low) == pytest.approx(Z_80 * np.sqrt(squares))
    assert found.own_sigma == pytest.approx(np.hypot(found.layout_sigma, found.rest_sigma))


@pytest.mark.parametrize(("cluster", "factor"), [("h100-80gb-dgx", 1.0), ("h100-80gb-efa", 1.4)])
def test_lossy_transport_and_waiting_tp_ranks_widen_a_layouts_own_error(points, cluster, factor):
    (group,) = points({"cluster": cluster}).groups
    roughness = np.array([2.0])
    found = errors_of(
        group, group.features, None, novelty=np.ones(1), halved=np.zeros(1), roughness=roughness
    )
    wider = {"layout": 2 * factor, "rest": 2 * factor}
    expected = {part: sigma * wider.get(part, 1.0) for part, sigma in DATA_SHEETS[True].items()}
    assert found == {part: pytest.approx(sigma) for part, sigma in expected.items()}


def test_sure_stalls_are_in_the_time_likely_ones_in_interval_and_order():
    stalls, steps = Stalls(np.array([0.9, 0.5, 0.1]), np.full(3, 10.0)), np.full(3, 20.0)
    assert stalls.expected_s.tolist() == [10, 0, 0]
    assert stalls.possible_s.tolist() == [0, 10, 0]
    assert stalls.sigma(steps) == pytest.approx([0, np.log(1.5) / 2, 0])
    assert stalls.ranked_s(steps) == pytest.approx([20, 25, 21])


def test_sizes_beyond_the_calibrated_ones_share_more_error(points):
    table = points({"dp": 8}, {"dp": 16}, {"dp": 64})
    found = predict(table, calibrated(table.groups[0]))
    near, twice, eight = found.size_sigma
    assert near == pytest.approx(np.hypot(CALIBRATED["size"], DATA_SHEETS[True]["size"]))
    assert near < twice < eight
    assert eight**2 - near**2 == pytest.approx(3 * (twice**2 - near**2))


def test_a_longer_sequence_takes_the_fit_at_half_its_logarithmic_distance(points):
    table = points({"dp": 8}, {"dp": 8, "seq_length": 8192})
    (group,) = table.groups
    sheet, fit = predict(table), predict(table, calibrated(group, gemm_efficiency=0.4))
    within, beyond = np.log(fit.step_time_s / sheet.step_time_s)
    assert beyond == pytest.approx(within / 2, rel=0.2)
    # the whole fit may be right all the same
    assert fit.common_sigma[1] > 0.8 * beyond
    # memory follows it
    logits = predict(table, calibrated(group, kept_logits=20.0)).memory_terms["logits_bytes"]
    assert logits == pytest.approx(2 * sheet.memory_terms["logits_bytes"])


def test_a_handful_of_rows_moves_other_layouts_of_its_cluster(points):
    measured = {"dp": 8, "outcome": "ok"}
    rows = [{**measured, "tp": tp, "dp": 8 // tp} for tp in (1, 2, 4)]
    slow = 1.3 * predict(points(*rows)).step_time_s
    rows = [{**row, "step_time_s": s} for row, s in zip(rows, slow.tolist(), strict=True)]
    fit = fitted_on(table_of(*rows))
    other = points({"tp": 2, "dp": 8, "num_layers": 48, "model": "other"})
    moved = predict(other, fit).step_time_s / predict(other).step_time_s
    assert 1.1 < moved[0] < 1.35


def test_errors_are_learned_from_rows_left_out_and_few_rows_say_little():
    random = np.random.default_rng(0)
    for rows, least, most in ((2000, 0.17, 0.22), (5, 0.06, 0.14)):
        parts = learned_errors(random.normal(0, 0.2, rows), np.ones(rows), lossy=False)
        assert least < np.sqrt(sum(sigma**2 for sigma in parts.values())) < most
    unmeasured = learned_errors(np.ones(0), np.ones(0), lossy=True)
    assert unmeasured == {part: pytest.approx(1.4 * sigma) for part, sigma in CALIBRATED.items()}


def test_a_gpu_of_the_same_generation_takes_over_software_parameters(points):
    (group,) = points({"cluster": "h100-80gb-dgx"}).groups
    moved = {"gemm_efficiency": 0.4, "norm_passes": 40.0, "network_efficiency": 0.3}
    other = calibrated(group, cluster="a100-80gb-dgx", **moved)
    assert other.parameters_for(group) == (group.start, None, "data sheet")
    kin = calibrated(group, cluster="h100-80gb-efa", generation="hopper", **moved)
    p, _, source = kin.parameters_for(group)
    assert source == "plain|h100-80gb-efa (other cluster)"
    assert (p["gemm_efficiency"], p["norm_passes"]) == (0.4, 40.0)
    assert p["network_efficiency"] == group.start["network_efficiency"]


def test_a_measured_bus_is_the_rate_of_all_reduces_and_bounds_rings():
    measured = Cluster(
        gpu="h100-80gb", gpus_per_node=8, nodes=64, node_link_bytes_per_s=400e9,
        bus_bytes_per_s={1: 400e9, 2: 300e9, 4: 150e9}, source="t",
    )  # fmt: skip
    (group,) = checked({"cluster": "here", "dp": 32}, clusters={"here": measured}).groups
    nodes = np.array([2.0, 4.0])
    assert ring_bus(group, nodes, 0.5) == pytest.approx([200e9, 150e9])
    assert tp_bus(group, nodes, 0.5) == pytest.approx([300e9, 150e9])


def test_the_odds_of_a_tie_are_even_and_one_in_ten_lies_beyond_an_interval():
    own = (0.06, 0.08)  # they add in squares
    assert chance_faster(2.0, 2.0, *own) == pytest.approx(0.5)
    # an 80 % interval ends 1.2816 standard deviations away, on both sides
    ahead = np.exp(0.12816)
    assert chance_faster(1.0, ahead, *own) == pytest.approx(0.9, abs=1e-4)
    assert chance_faster(ahead, 1.0, *own) == pytest.approx(0.1, abs=1e-4)


def test_every_prediction_says_what_of_its_error_is_its_own(points):
    asked = points(
        {"tp": 8, "dp": 1},
        {"tp": 1, "dp": 8},
        {"tp": 16, "dp": 4, "seq_length": 512, "cluster": "h100-80gb-efa"},
    )
    table = prediction_table(asked, predict(asked))
    width = np.log(table["high"].to_numpy() / table["low"].to_numpy())
    layout, rest, size = (
        table[f"predicted_{part}_sigma"].to_numpy() for part in ("layout", "rest", "size")
    )
    own = np.hypot(layout, rest)
    assert ((own > 0) & (own < width) & (size > 0) & (size < width)).all()
    # over nodes its tensor-parallel ranks wait most of the step
    assert own[2] > own[0] > own[1]


def test_a_stall_that_may_come_widens_what_is_its_own(points):
    shared = {"framework": "nanotron", "cluster": "h100-80gb-efa", "world_size": 32, "dp": 16}
    shared |= {"pp": 2, "gradient_accumulation_steps": 16}
    prediction = predict(points({**shared, "zero_stage": 0}, {**shared, "zero_stage": 1}))
    stalls, calm = prediction.own_sigma
    assert stalls > 2 * calm
    assert prediction.high[0] / prediction.step_time_s[0] > 1.5


PIPELINES = [
    {"pp": 4, "tp": tp, "dp": 2 * nodes // tp, "zero_stage": 1, "cluster": "h100-80gb-efa",
     "micro_batch_size": micro, "gradient_accumulation_steps": 32}
    for nodes in (2, 4, 8) for tp in (1, 2) for micro in (1, 2)
]  # fmt: skip
MICRO_BATCHES = 32


@pytest.fixture
def pipelines():
    """Twelve pipelines over two, four and eight nodes, and their steps without a stall."""
    (group,) = checked(*PIPELINES).groups
    f, p = group.features, group.start
    used = memory_of(group, f, p).total / group.capacity_bytes
    quiet_s = step_of(group, f, p, used).total - stalls_of(group, f, p).expected_s
    assert (used < 0.9).all()
    return group, f, p, used, quiet_s


def chances(group, f, p, found):
    return stalls_of(group, f, {**p, **found}).chance


def test_pipelines_that_stalled_are_expected_to_stall_again(pipelines):
    group, f, p, used, quiet_s = pipelines
    wide = f.world_size == 64
    measured_s = quiet_s + np.where(wide, STALL_S * MICRO_BATCHES, 0.0)
    found = fit_stalls(group, f, measured_s, p, used)
    before, after = (chances(group, f, p, odds) for odds in ({}, found))
    assert set(found) == set(STALL_ODDS)
    assert (after[wide] > 2 * before[wide]).all()
    assert after[wide].min() > 2 * after[~wide].max()


def test_quiet_pipelines_lower_the_odds(pipelines):
    group, f, p, used, quiet_s = pipelines
    found = fit_stalls(group, f, quiet_s, p, used)
    assert (chances(group, f, p, found) < chances(group, f, p, {})).all()


def test_slow_steps_of_nearly_full_memory_tell_nothing(pipelines):
    group, f, p, used, quiet_s = pipelines
    assert fit_stalls(group, f, quiet_s + STALL_S * MICRO_BATCHES, p, np.ones_like(used)) == {}


def test_no_odds_are_learned_over_infiniband():
    (group,) = checked(*({**row, "cluster": "h100-80gb-dgx"} for row in PIPELINES)).groups
    f = group.features
    assert fit_stalls(group, f, np.full(len(f), 100.0), group.start, np.zeros(len(f))) == {}
