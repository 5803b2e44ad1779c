"""Interleaving, ring attention, low precision and what software of 2024 and later does unasked."""

import numpy as np
import pytest

from scaling.cluster.hardware import GPUS, Cluster
from scaling.predict.cost.compute import layer_time
from scaling.predict.cost.model import predict
from scaling.predict.cost.stages import in_flight
from scaling.predict.read.clusters import cluster_named
from tests.predict.conftest import IDEAL, LAYER, ideal_step, memory

pytestmark = pytest.mark.usefixtures("no_overheads")

CORE = {"framework": "Megatron-Core 0.12", "cluster": "h100-80gb-dgx"}


@pytest.mark.parametrize(
    ("layout", "first", "last"),
    [
        ({"pp": 8}, 8, 1),
        # Megatron's warm-up of 2 (pp - rank - 1) + (v - 1) pp chunks and the one that runs:
        # (14 + 3 * 8 + 1) / 4 and (0 + 3 * 8 + 1) / 4 of a stage
        ({"pp": 8, "virtual_stages": 4}, 39 / 4, 25 / 4),
        ({"pp": 8, "virtual_stages": 4, "gradient_accumulation_steps": 4}, 4, 4),
        ({"pp": 1, "virtual_stages": 4}, 1, 1),
    ],
)
def test_interleaving_holds_more_micro_batches(points, layout, first, last):
    f = points({"gradient_accumulation_steps": 64, **layout}).groups[0].features
    held = [float(in_flight(f, rank)[0]) for rank in (0.0, f.pp - 1)]
    assert held == [pytest.approx(first), pytest.approx(last)]


def test_interleaving_shortens_the_fill_and_sends_more_messages(points):
    row = {"pp": 4, "gradient_accumulation_steps": 8, "vocab_size": 1}
    plain, chunked = (ideal_step(points({**row, "virtual_stages": v})) for v in (1, 4))
    # of the fill no chunk shortens the messages, nor the 1 % by which 1F1B slows the other 7 slots
    slot = sum(plain.terms[name] for name in ("gemm_s", "attention_s", "elementwise_s", "head_s"))
    rest = 3 * 2 * (4096 * 4096 * 2 / 300e9) + 7 * 0.01 * slot / 8
    fill = plain.terms["bubble_s"] - rest
    assert chunked.terms["bubble_s"] - rest == pytest.approx(fill / 4)
    # four times as many, of which a tenth is waited for
    assert chunked.terms["pp_comm_s"] == pytest.approx(0.4 * plain.terms["pp_comm_s"])


def test_a_middle_stage_with_more_layers_is_the_slowest(points):
    row = {"framework": "scaling", "cluster": "h100-80gb-dgx", "num_layers": 126, "pp": 8}
    row |= {"vocab_size": 100, "compile": True}
    step = ideal_step(points(row))
    flops = 16 * 6 * LAYER * 4096
    assert step.terms["gemm_s"] == pytest.approx(flops / GPUS["h100-80gb"].sustained("bf16"))
    assert step.terms["host_s"] == pytest.approx(0, abs=1e-9)
    # of one micro-batch all stages hold as many activations a layer
    assert memory(points(row)).terms["weights_bytes"] == pytest.approx(2 * 16 * LAYER)


def test_a_ring_hides_behind_attention_until_it_is_longer(points):
    row = {"cp": 4, "cp_style": "ring", "num_kv_heads": 8}

    def waited(link_efficiency, **changes):
        step = ideal_step(points({**row, **changes}), link_efficiency=link_efficiency)
        return float(step.terms["tp_comm_s"][0])

    assert waited(1.0) == 0
    # 1,024 tokens of keys and values, three passes forward and of twice the bytes backward
    block = 4096 / 4 * 2 * 1024 * 2
    attention = 32 * 3.5 * (4 * 4096**2 * 4096 / 2) / 4 / (312e12 * 0.5)
    slow = 32 * 3 * 3 * block / (300e9 * 1e-3) - attention * 3 / 4
    assert waited(1e-3) == pytest.approx(slow)
    # attention that is computed again needs the keys and values again
    slow = 32 * 4 * 3 * block / (300e9 * 1e-3) - attention * 4.5 / 3.5 * 3 / 4
    assert waited(1e-3, activation_checkpointing="selective") == pytest.approx(slow)
    assert waited(1.0, cp_style="all_to_all") > 0


def test_tp_ranks_cast_what_they_hold(points):
    row = {"cluster": "h100-80gb-dgx", "fused_norm": True, "framework": "scaling", "tp": 4}
    row |= {"sequence_parallel": True, "precision": "fp8"}
    (group,) = points(row).groups
    f = group.features
    none = f.but(cast_bytes=np.zeros(1))
    p = {**group.start, **IDEAL}
    with_casts, without = (layer_time(group, one, p)[0] for one in (f, none))
    casts_s = with_casts["elementwise_s"] - without["elementwise_s"]
    # h, h of inputs and of outputs; q twice, k and v, gate and up, ffn over the ranks; weights for
    # each product
    elements = 4096 * (4 * 4096 + (4 * 4096 + 3 * 11008) / 4) + LAYER / 4
    gpu = GPUS["h100-80gb"]
    assert casts_s == pytest.approx(20 * elements / (gpu.hbm_bytes_per_s * 0.85))


@pytest.mark.parametrize("framework", ["scaling", "scaling torch"])
def test_our_engine_casts_to_eight_bits_before_each_product(points, framework):
    row = {"cluster": "h100-80gb-dgx", "fused_norm": True, "framework": framework, "dp": 8}
    asked = [points({**row, "precision": precision}) for precision in ("bf16", "fp8")]
    wide, narrow = map(memory, asked)
    for name in ("weights_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes"):
        assert narrow.terms[name] == pytest.approx(wide.terms[name])
    bf16, fp8 = map(ideal_step, asked)
    assert fp8.terms["gemm_s"] < bf16.terms["gemm_s"]
    assert fp8.terms["elementwise_s"] > bf16.terms["elementwise_s"]


def test_fused_kernels_keep_what_backward_reads_and_no_copies(points):
    row = {**CORE, "activation_checkpointing": "none"}
    lean, full = (
        memory(points({**row, "framework": name}), late_release=0)
        for name in ("Megatron-Core", "torchtitan")
    )
    # norms' inputs and outputs 8 h, q, k, v and output 8 h, gate, up and product 6 ffn
    per_token = 8 * 4096 + 8 * 4096 + 6 * 11008
    assert lean.terms["activations_bytes"] == pytest.approx(32 * 4096 * per_token)
    assert full.total > lean.total


def test_links_that_join_hosts_make_them_one_node(points):
    rows = [{"cluster": "gb200-186gb", "gpus_per_node": n, "dp": 64} for n in (4, 72, None)]
    few, all_of_it, unsaid = predict(points(*rows)).step_time_s
    assert few == all_of_it == unsaid
    mine = Cluster(
        gpu="gb200-186gb", gpus_per_node=4, nodes=36, node_link_bytes_per_s=2e11,
        bus_bytes_per_s={18: 8e11, 36: 4e11}, source="t",
    )  # fmt: skip
    joined = cluster_named("mine", {"mine": mine})
    assert (joined.gpus_per_node, joined.node_link_bytes_per_s) == (72, 18 * 2e11)
    assert joined.bus_bytes_per_s == {1: 8e11, 2: 4e11}
