"""ZeRO over a part of the replicas: bytes and seconds worked by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.predict.cost.communication import traffic_of
from scaling.predict.cost.memory import memory_of
from scaling.predict.cost.model import predict
from scaling.predict.cost.stages import stages_of
from scaling.predict.cost.step import step_of
from scaling.predict.read.points import points_of
from tests.predict.conftest import as_table, table_of
from tests.predict.test_memory_arithmetic import HEAD, LAYER, PARAMS, UNHURRIED, memory
from tests.predict.test_step_arithmetic import IDEAL

pytestmark = pytest.mark.usefixtures("no_overheads")

STATE = ("weights_bytes", "gradients_bytes", "optimizer_bytes")


def traffic(points):
    (group,) = points.groups
    f = group.features
    return traffic_of(group, f, {**group.start, **IDEAL}, stages_of(f, group.stack))


def state_bytes(points):
    terms = memory(points).terms
    return sum(terms[name] for name in STATE)


@pytest.mark.parametrize(
    ("zero_stage", "bytes_per_parameter"),
    [(1, 2 + 4 + 12 / 8), (2, 2 + (4 + 12) / 8), (3, (2 + 4 + 12) / 8)],
)
def test_state_is_divided_by_the_ranks_that_share_it_not_by_all_of_dp(
    points, zero_stage, bytes_per_parameter
):
    row = {"dp": 64, "zero_shard_size": 8, "zero_stage": zero_stage}
    gathered = 2 * LAYER * (zero_stage == 3)  # the layer that is computed
    assert state_bytes(points(row)) == pytest.approx(PARAMS * bytes_per_parameter + gathered)


def test_an_empty_cell_shards_over_all_of_dp(points):
    rows = [{"dp": 16, "zero_stage": 3, "zero_shard_size": size} for size in (None, 16)]
    absent, all_of_it = (predict(points(row)) for row in rows)
    assert absent.memory_bytes == all_of_it.memory_bytes
    assert absent.step_time_s == all_of_it.step_time_s


def test_zero_3_gathers_inside_the_node_and_reduces_gradients_across(points):
    row = {"dp": 16, "zero_shard_size": 8, "zero_stage": 3, "gradient_accumulation_steps": 4}
    found = traffic(points(row))
    weights = 32 * LAYER + 2 * HEAD
    # gathered twice and scattered once every micro-batch, over NVLink: dp over two nodes is not
    assert found.gathering == pytest.approx(7 / 8 * weights * 6 / 300e9 + 3 * 32 * 7 * 3.4e-6)
    # an eighth of the fp32 gradients, once a step, between two ranks on two nodes whose NICs eight
    # such pairs share: 25 GB/s each, around rings of two
    ring = 2 * 1 / 2 * weights * 4 / 8 / 25e9 + 2 * 2 * 14e-6
    assert found.gradients == pytest.approx(ring)


def test_zero_1_scatters_and_gathers_inside_the_group(points):
    found = traffic(points({"dp": 16, "zero_shard_size": 8, "zero_stage": 1}))
    weights = 32 * LAYER + 2 * HEAD
    inside = 7 / 8 * weights * (4 + 2) / 300e9 + 7 * 3.4e-6
    across = weights * 4 / 8 / 25e9 + 2 * 2 * 14e-6
    assert found.gradients == pytest.approx(inside + across)
    assert found.gathering == 0


def test_a_group_of_one_is_plain_data_parallelism(points):
    rows = [{"dp": 16, "zero_stage": 3, "zero_shard_size": 1}, {"dp": 16, "zero_stage": 0}]
    one, plain = (points(row) for row in rows)
    assert state_bytes(one) == state_bytes(plain)
    assert traffic(one).gradients == traffic(plain).gradients
    assert traffic(one).gathering == 0


def test_the_optimizer_updates_what_a_rank_holds(points):
    def optimizer_s(row):
        (group,) = points(row).groups
        f = group.features
        p = {**group.start, **IDEAL}
        used = memory_of(group, f, p).total / group.capacity_bytes
        return step_of(group, f, p, used).terms["optimizer_s"][0]

    hybrid, whole = (
        optimizer_s({"dp": 64, "zero_stage": 3, "zero_shard_size": size}) for size in (8, None)
    )
    assert hybrid == pytest.approx(8 * whole)


OURS = {"framework": "scaling", "dp": 16, "zero_stage": 3, "gradient_accumulation_steps": 4}


def test_deepspeeds_second_copy_adds_weights_only(points):
    """bf16 weights once more over 8; what ZeRO-3 has gathered at the peak is the same."""
    second, whole, named = (
        state_bytes(points({**OURS, "zero_shard_size": size})) for size in (8, None, 16)
    )
    assert second - whole == pytest.approx(PARAMS * 2 / 8, rel=1e-3)
    assert whole == named


def test_a_second_copy_leaves_one_gather_and_the_scatter_between_nodes(points):
    found = traffic(points({**OURS, "zero_shard_size": 8}))
    layer_bytes = (32 * LAYER + 2 * HEAD) * 2
    # two nodes of eight: 15 / 16 of the bytes past 200 GB/s of NICs, 14 hops inside and 2 between
    far = 15 / 16 * layer_bytes / 200e9 + 32 * (14 * 3.4e-6 + 2 * 14e-6)
    near = 7 / 8 * layer_bytes / 300e9 + 32 * 7 * 3.4e-6
    # of 4 micro-batches' 8 gathers 1 is far; the mean of a micro-batch, its scatter included
    assert found.gathering == pytest.approx((1 / 4 + 1) * far + (2 - 1 / 4) * near)
    assert found.gradients == 0


def test_a_stage_gathers_its_own_layers_and_torch_scatters_once(points):
    """Their backward keeps what it gathered for the forward after it: 5 gathers, not 8."""
    row = {"dp": 8, "pp": 2, "zero_stage": 3, "gradient_accumulation_steps": 4}
    named = {**row, "framework": "scaling torch"}
    weights, hops = 16 * LAYER + HEAD, 16 * 7 * 3.4e-6
    scatter = 7 / 8 * weights * 2 / 300e9 + hops
    usual, late = traffic(points({**row, "num_layers": 32})), traffic(points(named))
    assert usual.gathering == pytest.approx(3 * scatter, rel=0.03)
    assert late.gradients == pytest.approx(usual.gathering / 3, rel=0.03)
    assert late.gathering == pytest.approx(late.gradients * 5 / 4)


def test_deepspeeds_bf16_pipelines_shard_state_without_zero(points):
    row = {"dp": 4, "pp": 2, "framework": "scaling", "num_layers": 32}
    (group,) = points(row, {**row, "precision": "fp16"}).groups
    f, p = group.features, {**group.start, **IDEAL}
    bf16, fp16 = traffic_of(group, f, p, stages_of(f, group.stack)).gradients
    # an all-reduce of 16-bit gradients is two passes, gathered weights are a third
    assert bf16 == pytest.approx(1.5 * fp16)
    optimizer = step_of(group, f, p, memory_of(group, f, p).total).terms["optimizer_s"]
    assert optimizer[0] == pytest.approx(optimizer[1] / 4)


def test_torchtitans_pipelines_keep_weights_and_gradients_for_a_whole_step(points):
    row = {"dp": 8, "pp": 2, "zero_stage": 3, "gradient_accumulation_steps": 4}
    found = points({**row, "framework": "torchtitan"})
    weights, hops = 16 * LAYER + HEAD, 16 * 7 * 3.4e-6
    moved = traffic(found)
    # one gather of 16 bits and one scatter of fp32 a step, whatever its micro-batches
    assert 4 * moved.gathering == pytest.approx(7 / 8 * weights * 2 / 300e9 + hops)
    assert moved.gradients == pytest.approx(7 / 8 * weights * 4 / 300e9 + hops)
    (group,) = found.groups
    terms = memory_of(group, group.features, group.start).terms
    # whole in 16 bits, and the fp32 shards beside their moments; gradients add up in fp32
    state = terms["weights_bytes"] + terms["optimizer_bytes"]
    assert state == pytest.approx(weights * (2 + 12 / 8))
    assert terms["gradients_bytes"] == pytest.approx(weights * 4)


def test_torchtitan_scatters_gradients_in_fp32(points):
    row = {"dp": 8, "zero_stage": 3, "framework": "torchtitan"}
    weights = 32 * LAYER + 2 * HEAD
    ring = 3 * 32 * 7 * 3.4e-6
    assert traffic(points(row)).gathering == pytest.approx(7 / 8 * weights * 8 / 300e9 + ring)


def test_fp32_gradients_travel_as_wide_as_they_are(points):
    row = {"framework": "scaling", "dp": 8, "precision": "fp32"}
    params = 32 * LAYER + 2 * HEAD
    ring = 2 * (7 / 8 * params * 4 / 300e9 + 7 * 3.4e-6)
    assert traffic(points(row)).gradients == pytest.approx(ring)


@UNHURRIED
@given(
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
    st.integers(0, 5),
)
def test_a_wider_group_never_takes_more_memory_nor_more_optimizer_time(zero_stage, tp, cp, power):
    row = {"dp": 64, "tp": tp, "cp": cp, "zero_stage": zero_stage}
    rows = [{**row, "zero_shard_size": 2**k} for k in (power, power + 1)]
    prediction = predict(points_of(as_table(table_of(*rows), "t")))
    assert prediction.memory_bytes[1] < prediction.memory_bytes[0]
    optimizer = prediction.time_terms["optimizer_s"]
    assert optimizer[1] == pytest.approx(optimizer[0] / 2)
