"""ZeRO over a part of the replicas: bytes and seconds worked by hand."""

import pytest

from scaling.predict.cost.model import predict
from tests.predict.conftest import HEAD, LAYER, PARAMS, ideal_step, memory, traffic
from tests.predict.test_memory_arithmetic import STATE

pytestmark = pytest.mark.usefixtures("no_overheads")


def state_bytes(points):
    terms = memory(points).terms
    return sum(terms[name] for name in STATE)


WEIGHTS = 32 * LAYER + 2 * HEAD
HOPS, FAR_HOP = 7 * 3.4e-6, 14e-6  # of a ring of eight on a node; between nodes
INSIDE = 7 / 8 * WEIGHTS / 300e9  # a byte of each weight around that ring
OURS = {"framework": "scaling", "dp": 16, "zero_stage": 3, "gradient_accumulation_steps": 4}
# fp32 gradients of an eighth, between pairs on two nodes whose NICs eight pairs share: 25 GB/s each
PAIRS = 2 * 1 / 2 * WEIGHTS * 4 / 8 / 25e9 + 2 * 2 * FAR_HOP
# two nodes of eight: 15 / 16 of the bytes past 200 GB/s of NICs, 14 hops inside and 2 between
FAR = 15 / 16 * 2 * WEIGHTS / 200e9 + 32 * (2 * HOPS + 2 * FAR_HOP)


@pytest.mark.parametrize(
    ("row", "gathering", "gradients"),
    [
        # gathered twice and scattered once every micro-batch
        ({"dp": 8, "zero_stage": 3, "gradient_accumulation_steps": 2}, 6 * INSIDE + 96 * HOPS, 0),
        ({"dp": 16, "zero_stage": 3, "zero_shard_size": 8, "gradient_accumulation_steps": 4},
            6 * INSIDE + 96 * HOPS, PAIRS),
        # fp32 gradients scattered, 16-bit weights gathered
        ({"dp": 16, "zero_stage": 1, "zero_shard_size": 8}, 0, 6 * INSIDE + HOPS + PAIRS),
        # of 4 micro-batches' 8 gathers 1 is far; the mean of a micro-batch, its scatter included
        ({**OURS, "zero_shard_size": 8},
            (1 / 4 + 1) * FAR + (2 - 1 / 4) * (2 * INSIDE + 32 * HOPS), 0),
        ({"dp": 8, "framework": "scaling", "precision": "fp32"}, 0, 2 * (4 * INSIDE + HOPS)),
    ],
)  # fmt: skip
def test_sharded_traffic_is_what_each_software_moves(points, row, gathering, gradients):
    found = traffic(points(row))
    assert found.gathering == pytest.approx(gathering)
    assert found.gradients == pytest.approx(gradients)


def test_an_empty_cell_shards_over_all_of_dp(points):
    rows = [{"dp": 16, "zero_stage": 3, "zero_shard_size": size} for size in (None, 16)]
    absent, all_of_it = (predict(points(row)) for row in rows)
    assert absent.memory_bytes == all_of_it.memory_bytes
    assert absent.step_time_s == all_of_it.step_time_s


def test_a_group_of_one_is_plain_data_parallelism(points):
    rows = [{"dp": 16, "zero_stage": 3, "zero_shard_size": 1}, {"dp": 16, "zero_stage": 0}]
    one, plain = (points(row) for row in rows)
    assert state_bytes(one) == state_bytes(plain)
    assert traffic(one).gradients == traffic(plain).gradients
    assert traffic(one).gathering == 0


def test_deepspeeds_second_copy_adds_weights_only(points):
    """bf16 weights once more over 8; what ZeRO-3 has gathered at the peak is the same."""
    second, whole, named = (
        state_bytes(points({**OURS, "zero_shard_size": size})) for size in (8, None, 16)
    )
    assert second - whole == pytest.approx(PARAMS * 2 / 8, rel=1e-3)
    assert whole == named


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
    both = points(row, {**row, "precision": "fp16"})
    bf16, fp16 = traffic(both).gradients
    # an all-reduce of 16-bit gradients is two passes, gathered weights are a third
    assert bf16 == pytest.approx(1.5 * fp16)
    optimizer = ideal_step(both).terms["optimizer_s"]
    assert optimizer[0] == pytest.approx(optimizer[1] / 4)
