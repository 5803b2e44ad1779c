"""How far a fit is followed where rows are new, and what it takes over from other GPUs."""

import dataclasses

import numpy as np
import pytest

from scaling.cluster.hardware import Cluster
from scaling.foreign.columns import Columns
from scaling.predict.cost.interval import is_confounded, layout_ranges
from scaling.predict.cost.links import Ranks, ring_pass, transport_of
from scaling.predict.cost.model import predict
from scaling.predict.fit.fitting import NARROWED, fit_cautiously, fit_time
from scaling.predict.read.calibration import (
    NO_ROW_DEPENDS,
    Band,
    Calibration,
    Fitted,
    StackCalibration,
)
from scaling.predict.read.observed import Observed
from scaling.predict.read.parameters import PARAMETERS, TIME
from scaling.predict.read.points import points_of
from scaling.predict.read.trust import (
    CAUTIOUS,
    LAYOUT,
    TRUSTS,
    UNTESTED,
    chosen_trust,
    james_stein_trust,
    new_values,
    parameters_at_trust,
    trust_of_rows,
    untested_trust,
)
from tests.predict.conftest import table_of


def calibrated(group, *, generation="ampere", cluster=None, trust=None, **values):
    """A calibration of one stack that moved some parameters from where they began."""
    parameters = {
        name: Fitted(
            value=values.get(name, group.start[name]),
            low=parameter.low,
            high=parameter.high,
            identified=name in values,
            reason="",
            start=group.start[name],
        )
        for name, parameter in PARAMETERS.items()
    }
    stack = StackCalibration(
        framework=group.framework,
        cluster=cluster or group.cluster_name,
        generation=generation,
        rows_timed=20,
        rows_out_of_memory=0,
        rows_with_peak_memory=0,
        parameters=parameters,
        bands={"interpolation": Band(low=-0.05, high=0.05, rows=10)},
        seen={
            "world_size": (8.0,),
            "seq_length": (4096.0,),
            "model": ("llama-7b",),
            "hidden_size": (4096.0,),
        },
        trust=trust or {},
    )
    return Calibration(source="t", stacks={f"{group.framework}|{stack.cluster}": stack})


def timed(step_time_s):
    """Rows that ran in these seconds."""
    nothing = np.zeros(len(step_time_s), dtype=bool)
    return Observed(
        step_time_s=step_time_s,
        peak_memory_bytes=np.full(len(step_time_s), np.nan),
        ran=~nothing,
        out_of_memory=nothing,
        ambiguous=nothing,
    )


def axes_of(count, **changes):
    """So many rows of what `calibrated` has seen, but for these changes."""
    seen = {"world_size": 8.0, "seq_length": 4096.0, "model": "llama-7b", "hidden_size": 4096.0}
    axes = {name: np.array([value] * count) for name, value in seen.items()}
    axes["model"] = axes["model"].astype(object)
    return axes | {name: np.array(values) for name, values in changes.items()}


def fold(at_one, otherwise=0.1, rows=4):
    """Errors of held-out rows at each trust: `at_one` by the whole fit."""
    return [np.full(rows, at_one if trust == 1.0 else otherwise) for trust in TRUSTS]


def test_a_trust_is_the_largest_whose_held_back_errors_are_not_clearly_worse():
    assert chosen_trust("world_size", [fold(0.104)]) == 1.0
    assert chosen_trust("world_size", [fold(0.2)]) == 0.75
    # one stalled step counts no more than half a logarithm
    stalled = [np.array([0.0, 0.0, 9.0 if trust == 1.0 else 0.5]) for trust in TRUSTS]
    assert chosen_trust("world_size", [stalled]) == 1.0


@pytest.mark.parametrize("axis", ["model", "hidden_size"])
def test_another_model_is_left_to_the_data_sheet_unless_the_fit_surely_helped_with_others(axis):
    assert chosen_trust(axis, [fold(0.05), fold(0.06)]) == 1.0
    assert chosen_trust(axis, [fold(0.05)]) == 0.0
    # it saves 0.05 of one model's error and costs 0.03 with the other: 0.01, sure to 0.04
    in_doubt = [fold(0.05), fold(0.13)]
    assert chosen_trust(axis, in_doubt) == 0.0
    assert chosen_trust("seq_length", in_doubt) == 1.0
    # of many rows the one model, of few the other
    assert chosen_trust(axis, [fold(0.05, rows=40), fold(0.13)]) == 1.0


def test_a_row_that_is_new_in_several_ways_has_the_least_trust_of_them(points):
    (group,) = points({}).groups
    (stack,) = calibrated(group, trust={"world_size": 0.25}).stacks.values()
    lengths = [4096.0, 4096.0, 8192.0, 8192.0]
    axes = axes_of(4, world_size=[8.0, 16.0, 16.0, 8.0], seq_length=lengths)
    near, far = (new_values(stack, axes, np.full(4, beyond)) for beyond in (0.0, 1.0))
    no, first = np.zeros(4, dtype=bool), np.arange(4) < 1
    assert trust_of_rows(stack, axes, near, no).tolist() == [1.0, 0.25, 0.25, CAUTIOUS]
    (other,) = calibrated(group, trust={UNTESTED: 0.3, LAYOUT: 0.5}).stacks.values()
    assert trust_of_rows(other, axes, near, no).tolist() == [1.0, 1.0, 0.3, 0.3]
    assert trust_of_rows(other, axes, far, no).tolist() == [0.5, 0.5, 0.3, 0.3]
    assert trust_of_rows(other, axes, near, first).tolist() == [0.25, 1.0, 0.3, 0.3]


def test_what_no_fold_could_test_is_followed_cautiously_at_most():
    assert untested_trust([]) == 0.0
    assert untested_trust([1.0, 0.75]) == CAUTIOUS
    assert untested_trust([1.0, 0.25]) == 0.25


def test_a_row_is_left_to_the_data_sheet_where_what_is_unfitted_outweighs_what_was_mended():
    unfitted = np.array([0.0, 0.02, 0.05, 0.2])
    assert james_stein_trust(0.1, unfitted).tolist() == [1.0, 0.75, 0.5, 0.0]
    assert james_stein_trust(0.0, unfitted).tolist() == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(("sheet_error", "follows"), [(None, True), (1.0, True), (0.01, False)])
def test_layouts_with_tensor_parallel_ranks_of_which_no_row_had_any(points, sheet_error, follows):
    plain = {"hidden_size": 1024, "num_heads": 16, "gradient_accumulation_steps": 4}
    table = points({**plain, "dp": 8}, {**plain, "tp": 8, "dp": 1})
    (group,) = table.groups
    calibration = calibrated(group, gemm_efficiency=0.4)
    ((key, stack),) = calibration.stacks.items()
    parameters = {
        name: dataclasses.replace(one, reason=NO_ROW_DEPENDS) if name.startswith("tp_") else one
        for name, one in stack.parameters.items()
    }
    one = layout_ranges(group.features.take(np.array([0])))
    stack = dataclasses.replace(
        stack, parameters=parameters, seen={**stack.seen, **one}, sheet_error=sheet_error
    )
    fit = predict(table, Calibration(source="t", stacks={key: stack})).step_time_s
    sheet = predict(table).step_time_s
    assert fit[0] > 1.1 * sheet[0]
    assert (fit[1] > 1.01 * sheet[1]) == follows


def test_a_precision_beyond_those_calibrated_follows_what_is_said_cautiously(points):
    (group,) = points({}).groups
    (stack,) = calibrated(group).stacks.values()
    stack = dataclasses.replace(stack, seen={**stack.seen, "gemm_peak": (49.0, 49.0)})
    axes = axes_of(2, gemm_peak=[49.0, 50.0])
    new = new_values(stack, axes, np.zeros(2))
    assert trust_of_rows(stack, axes, new, np.zeros(2, bool)) == pytest.approx([1.0, CAUTIOUS])


def test_beyond_all_widths_seen_folds_between_them_bear_out_less(points):
    (group,) = points({}).groups
    (stack,) = calibrated(group, trust={"hidden_size": 1.0}).stacks.values()
    stack = dataclasses.replace(stack, seen={**stack.seen, "hidden_size": (2048.0, 4096.0)})
    axes = axes_of(3, hidden_size=[3072.0, 8192.0, 1024.0])
    new = new_values(stack, axes, np.zeros(3))
    assert trust_of_rows(stack, axes, new, np.zeros(3, bool)) == pytest.approx([1.0, 0.75, 0.75])


def test_half_the_way_is_what_a_fit_says_cautiously_and_memory_goes_all_of_it():
    start = {name: parameter.default for name, parameter in PARAMETERS.items()}
    fitted = {name: 4 * value for name, value in start.items()}
    half = parameters_at_trust(fitted, start, 0.5)
    assert half["gemm_efficiency"] == pytest.approx(2 * start["gemm_efficiency"])
    assert half["kept_mlp"] == fitted["kept_mlp"]
    assert parameters_at_trust(fitted, start, 0.0) == start
    assert parameters_at_trust(fitted, start, 0.25)["kept_mlp"] == pytest.approx(
        2 * start["kept_mlp"]
    )
    cautious = {name: 3 * value for name, value in start.items()}
    for trust, times in ((0.25, 3**0.5), (CAUTIOUS, 3.0), (0.75, 12**0.5)):
        some = parameters_at_trust(fitted, start, trust, cautious)
        assert some["gemm_efficiency"] == pytest.approx(times * start["gemm_efficiency"])


def test_rows_all_slow_alike_move_a_cautious_fit_less(points):
    rows = [{"micro_batch_size": m, "gradient_accumulation_steps": 4} for m in (1, 2, 4, 8)]
    (group,) = points(*rows).groups
    seen = timed(predict(points(*rows)).step_time_s * 1.2)
    fitted = {
        **group.start,
        **{name: one.value for name, one in fit_time(group, seen, group.start).items()},
    }
    cautious = {**group.start, **fit_cautiously(group, seen, group.start, fitted)}

    def moved(p):
        return sum(abs(np.log(p[q.name] / group.start[q.name])) / q.spread for q in TIME)

    assert 0 < moved(cautious) < 0.6 * moved(fitted)


def test_a_new_size_without_trust_is_predicted_from_the_data_sheet(points):
    table = points({"dp": 8}, {"dp": 16})
    (group,) = table.groups
    plain = predict(table).step_time_s
    fit = predict(table, calibrated(group, gemm_efficiency=0.4, trust={"world_size": 0.0}))
    assert fit.step_time_s[0] > 1.3 * plain[0]
    assert fit.step_time_s[1] == pytest.approx(plain[1])
    for terms, total in ((fit.time_terms, fit.step_time_s), (fit.memory_terms, fit.memory_bytes)):
        assert sum(terms.values()) == pytest.approx(total)


def test_the_same_generation_takes_over_what_software_does_and_another_nothing(points):
    (group,) = points({"cluster": "h100-80gb-dgx"}).groups
    links = {"network_efficiency": 0.3, "p2p_efficiency_inside": 0.3, "p2p_latency_inside_s": 1e-3}
    moved = {"gemm_efficiency": 0.4, "norm_passes": 40.0, **links}
    other = calibrated(group, cluster="a100-80gb-dgx", **moved)
    assert other.parameters_for(group) == (group.start, None, "data sheet")
    kin = calibrated(group, cluster="h100-80gb-efa", generation="hopper", **moved)
    p, _, source = kin.parameters_for(group)
    assert source == "plain|h100-80gb-efa (other cluster)"
    assert (p["gemm_efficiency"], p["norm_passes"]) == (0.4, 40.0)
    assert all(p[name] == group.start[name] for name in links)


def test_a_parameter_that_rows_push_to_its_bound_is_held_off_it(points):
    rows = [{"micro_batch_size": m, "gradient_accumulation_steps": 4} for m in (1, 2, 4)]
    (group,) = points(*rows).groups
    # steps no GEMM of this GPU can reach ask for more than the bound allows
    fitted = fit_time(group, timed(predict(points(*rows)).step_time_s / 1.6), group.start)
    pushed = [name for name, one in fitted.items() if one.reason == NARROWED]
    assert pushed
    for name in pushed:
        q = PARAMETERS[name]
        assert q.low < fitted[name].value < q.high
        assert not fitted[name].identified


def test_what_overlaps_in_a_node_says_nothing_of_the_network(points):
    (group,) = points({"dp": 8, "zero_stage": 1}, {"dp": 16, "zero_stage": 1}).groups
    seen = timed(predict(points({"dp": 8, "zero_stage": 1})).step_time_s * 1.02)
    one = dataclasses.replace(
        group, rows=group.rows[:1], features=group.features.take(np.array([0]))
    )
    fitted = fit_time(one, seen, group.start)
    assert fitted["dp_exposed"].reason == "no row depends on it"
    assert fitted["dp_exposed_inside"].reason != "no row depends on it"


def test_a_measured_bus_is_a_bandwidth_and_a_wait_a_message():
    measured = Cluster(
        gpu="h100-80gb",
        gpus_per_node=8,
        nodes=64,
        node_link_bytes_per_s=400e9,
        bus_bytes_per_s={1: 400e9, 2: 300e9, 4: 150e9},
        source="t",
    )
    table = table_of({"cluster": "here", "dp": 32})
    (group,) = points_of(Columns(table, "t"), clusters={"here": measured}).groups
    nodes = np.array([1.0, 2.0, 4.0])
    ring, reducing, waits_s = transport_of(group, nodes, 0.5)
    assert ring.tolist() == [200e9] * 3
    assert reducing.tolist() == [300e9] * 3
    # 256 MB at 150 GB/s less 256 MB at 300 GB/s
    assert waits_s == pytest.approx([0, 0, 256e6 / 300e9])
    group_of_32 = Ranks(np.array([32.0]), np.array([4.0]), 300e9, np.array([200e9]))
    late = dataclasses.replace(group_of_32, waits_s=1e-3)
    message = np.array([1e6])
    assert ring_pass(message, late) - ring_pass(message, group_of_32) == pytest.approx(1e-3)


def test_a_count_that_all_rows_share_is_confounded_unless_it_is_one(points):
    one, eight = points({"tp": 1}).groups[0].features, points({"tp": 8}).groups[0].features
    several = points({"tp": 1}, {"tp": 4}, {"tp": 8}).groups[0].features
    assert is_confounded(several, layout_ranges(eight)).tolist() == [True, True, False]
    assert is_confounded(several, layout_ranges(one)).tolist() == [False, False, False]
    assert is_confounded(several, layout_ranges(several)).tolist() == [False, False, False]


def test_another_cluster_follows_a_fit_no_further_than_its_own_would(points):
    (group,) = points({"cluster": "a100-80gb-dgx", "framework": "f"}).groups
    told = {"gemm_efficiency": 0.4, "link_efficiency": 0.3}
    fit = calibrated(group, cluster="elsewhere", trust={"world_size": 0.0}, **told)
    one = {"cluster": "a100-80gb-dgx", "framework": "f", "tp": 8}
    both = points(one, {**one, "world_size": 64})
    seen = {"world_size": (float(both.world_size[0]),)}
    (stack,) = fit.stacks.values()
    features = both.groups[0].features
    seen |= {
        "seq_length": (float(both.seq_length[0]),),
        "model": (both.model[0],),
        "hidden_size": (float(features.hidden_size[0]),),
    }
    fit = Calibration(source="t", stacks={"k": dataclasses.replace(stack, seen=seen)})
    sheet, followed = predict(both).step_time_s, predict(both, fit).step_time_s
    assert followed[0] > 1.05 * sheet[0]
    assert followed[1] == pytest.approx(sheet[1])
