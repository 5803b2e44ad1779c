"""Seconds of a step worked by hand on a machine without overheads, and what must always hold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.cluster.hardware import GPUS
from scaling.predict.cost import communication, compute
from scaling.predict.cost.links import link, ring_s
from scaling.predict.cost.model import predict
from scaling.predict.cost.stages import stages_of
from scaling.predict.cost.step import step_of
from scaling.predict.read.parameters import PARAMETERS
from tests.predict.conftest import HEAD, IDEAL, LAYER, PARAMS, checked, ideal_step, traffic
from tests.predict.test_memory_arithmetic import UNHURRIED, layouts

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_overheads")]

SP = {"tp": 4, "sequence_parallel": True}
PASS = 32 * 3 / 4 * 4096 * 4096 * 2 / 300e9  # of the activations of all layers around 4 tp ranks
GEMMS = 32 * LAYER * 4096 / 312e12
# a cp rank holds 1,024 tokens of 2 x (4096 + 1024) elements and sends 3/4 of them
CP = {"cp": 4, "num_kv_heads": 8}
EXCHANGE = 32 * 4096 / 4 * 2 * (4096 + 1024) * 2 * 3 / 4 / 300e9
SHORT = {"dp": 8, "zero_stage": 1, "optimizer_precision": "bf16"}
HBM, PCIE, HOST = 2.039e12 * 0.85, 25e9, 150e9  # bytes/s
# FLOPs of a layer's scores and values forward, its scores, seconds of passes that are no norms
SCORES, HEADS = 4 * 4096**2 * 4096, 32 * 4096**2
OTHERS = 4096 * 2 * (9 * 11008 + 10 * 4096) / HBM


@pytest.mark.parametrize(
    ("row", "terms"),
    [
        # six FLOPs a weight and token
        ({"micro_batch_size": 2, "gradient_accumulation_steps": 3},
            {"gemm_s": 6 * 6 * GEMMS, "head_s": 6 * 6 * HEAD * 4096 / 312e12}),
        # forward a second time
        ({"activation_checkpointing": "full"}, {"gemm_s": 8 * GEMMS}),
        # flash attention: the causal half, and scores again in backward
        ({}, {"attention_s": 32 * 3.5 * (4 * 4096**2 * 4096 / 2) / (312e12 * 0.5)}),
        ({"attention": "flash1", "cp": 4, "micro_batch_size": 2},
            {"attention_s": 32 * 3.5 * (SCORES / 2) * 2 / 4 / (312e12 * 0.5 * 0.6)}),
        # without flash all scores, at 0.35 of the peak, and passes of 2 bytes over them
        ({"attention": "math"},
            {"attention_s": 32 * (3 * SCORES / (312e12 * 0.35) + 2 * 12 * 1.8 * HEADS / HBM)}),
        ({"attention": "fused_softmax", "activation_checkpointing": "selective", "tp": 4},
            {"attention_s": 8 * (4 * SCORES / (312e12 * 0.35) + 2 * 12 * 4 / 3 * HEADS / HBM)}),
        # 9 passes over the feed-forward and 10 over the heads, of 2 bytes; norms are 0 here
        ({"tp": 4}, {"elementwise_s": 32 * OTHERS / 4}),
        ({"activation_checkpointing": "full"}, {"elementwise_s": 32 * OTHERS * 4 / 3}),
        # four rings of two passes
        ({"tp": 4}, {"tp_comm_s": 8 * PASS}),
        # a gather and a scatter move as much
        (SP, {"tp_comm_s": 8 * PASS}),
        ({**SP, "activation_checkpointing": "full"}, {"tp_comm_s": 12 * PASS}),
        # tokens there and back, and forward once more
        (CP, {"tp_comm_s": 2 * EXCHANGE}),
        ({**CP, "activation_checkpointing": "full"}, {"tp_comm_s": 3 * EXCHANGE}),
        # states in 16 bits move half as many bytes
        (SHORT, {"optimizer_s": PARAMS / 8 * 18 / HBM}),
        ({**SHORT, "optimizer_offload": "cpu"},
            {"optimizer_s": PARAMS / 8 * 4 / PCIE + PARAMS * 14 / HOST}),
        # messages of two micro-batches, there and back: in the node, and over a GPU's share of NICs
        ({**SP, "pp": 2, "gradient_accumulation_steps": 3},
            {"pp_comm_s": 2 * 2 * 4096 * 4096 * 2 / 4 / 300e9}),
        ({"tp": 8, "pp": 2, "gradient_accumulation_steps": 3},
            {"pp_comm_s": 2 * 2 * 4096 * 4096 * 2 / 25e9}),
        # a large head makes the last stage the slowest
        ({"pp": 4, "vocab_size": 320000},
            {"gemm_s": 6 * GEMMS / 4, "head_s": 6 * 10 * HEAD * 4096 / 312e12}),
        # all eighths of the weights pass through each node's memory
        ({"dp": 16, "zero_stage": 1, "zero_shard_size": 8, "optimizer_offload": "cpu"},
            {"optimizer_s": PARAMS / 8 * 6 / PCIE + PARAMS * 28 / HOST}),
    ],
)  # fmt: skip
def test_terms_of_an_ideal_step_are_as_worked_by_hand(points, row, terms):
    assert set(IDEAL) <= set(PARAMETERS)
    step = ideal_step(points(row))
    assert {name: step.terms[name] for name in terms} == {
        name: pytest.approx(seconds) for name, seconds in terms.items()
    }
    assert sum(step.terms.values()) == pytest.approx(step.total)


WINDOW = {"attention_kind": "gqa, every other layer a window of 128"}
HYBRID = {"dp": 64, "zero_stage": 3, "zero_shard_size": 8}
MESH, SWITCH = (
    {"cluster": gpu, "gradient_accumulation_steps": 2} for gpu in ("mi300x-192gb", "h100-80gb")
)
FEW_KEYS = {"framework": "Megatron-LM", "tp": 8, "num_kv_heads": 2}


@pytest.mark.parametrize(
    ("row", "other", "term", "ratio", "off"),
    [
        # half the parameters, but two groups on every NIC: only the ring of 8 is shorter
        ({"dp": 8, "tp": 2}, {"dp": 16}, "dp_comm_s", (7 / 8) / (15 / 16), 0.02),
        # two ranks of a mesh have one of its links, of a switch the whole of theirs
        ({**MESH, "dp": 2}, {**SWITCH, "dp": 2}, "dp_comm_s", 450 / 64, 0.01),
        ({**MESH, "pp": 2}, {**SWITCH, "pp": 2}, "pp_comm_s", 450 / 64, 0.01),
        # the optimizer updates what a rank holds
        (HYBRID, {**HYBRID, "zero_shard_size": None}, "optimizer_s", 8, 1e-6),
        # each tp rank has a key head even if heads are fewer
        (FEW_KEYS, {**FEW_KEYS, "num_kv_heads": 8}, "gemm_s", 1, 1e-9),
        # half of the layers see 128 x 4,096 - 128^2 / 2 of 4,096^2 / 2 pairs
        (WINDOW, {}, "attention_s", (1 + 2 * 128 / 4096 - (128 / 4096) ** 2) / 2, 1e-6),
    ],
)
def test_a_choice_changes_a_term_by_a_factor(points, row, other, term, ratio, off):
    found, before = (ideal_step(points(one)).terms[term] for one in (row, other))
    assert found / before == pytest.approx(ratio, rel=off)


def test_a_head_multiplies_at_the_rate_of_gemms_and_passes_over_its_logits(points, monkeypatch):
    monkeypatch.setattr(compute, "_LOGIT_PASSES", 8.0)
    found = ideal_step(points({"tp": 4}), gemm_efficiency=0.5).terms["head_s"]
    passes = 8 * 4 * 4096 * 32000 / 4 / HBM
    assert found == pytest.approx(6 * HEAD * 4096 / 4 / 156e12 + passes)


@pytest.mark.parametrize(("shared", "norms_s"), [(True, 0.25), (False, 1.0)])
def test_only_sequence_parallelism_shards_norms_among_tp_ranks(points, shared, norms_s):
    found = ideal_step(points({**SP, "sequence_parallel": shared}), norm_passes_fused=100.0)
    norms_s *= 100 * 4096 * 4096 * 2 / HBM
    assert found.terms["elementwise_s"] == pytest.approx(32 * (norms_s + OTHERS / 4))


def test_tp_ranks_wait_for_what_their_gemms_do_not_hide(points):
    found = [
        ideal_step(points({"tp": 4}), tp_exposed=0.25, link_efficiency=share).terms["tp_comm_s"]
        for share in (1.0, 0.01)
    ]
    assert found[0] == pytest.approx(2 * PASS)
    assert found[1] == pytest.approx(800 * PASS - 0.75 * 6 * GEMMS / 4)


EFA = {"cluster": "h100-80gb-efa"}


@pytest.mark.parametrize(
    ("row", "launches_s"),
    [
        ({}, 0),
        ({"tp": 8}, 4 * 1.5e-3),  # of 4 collectives; log2(8) / 2, stated for 4 ranks
        ({**EFA, "tp": 8, "dp": 2}, 4 * 1.5e-3),
        # the host drives the transport of messages between stages
        ({**EFA, "tp": 8, "pp": 2}, 4 * (1.5e-3 + 8 * 1e-4)),
    ],
)
def test_collectives_of_tp_ranks_take_the_host_and_the_last_to_arrive(
    points, monkeypatch, row, launches_s
):
    quiet = traffic(points(row)).per_layer
    monkeypatch.setattr(communication, "TP_LATENCY_S", 1e-3)
    found = traffic(points(row), host_collective_s=1e-3, host_transport_s=1e-4)
    assert found.host_per_layer == pytest.approx(launches_s)
    assert found.per_layer - quiet == pytest.approx(4 * 1.5e-3 if row else 0)


@pytest.mark.parametrize(
    ("dp", "cp", "efficiency", "rate"),
    [(8, 1, 1.0, 300e9), (4, 2, 1.0, 300e9), (16, 1, 1.0, 200e9), (16, 1, 0.5, 100e9)],
)
def test_gradients_are_reduced_once_a_step_over_the_links_that_exist(
    points, dp, cp, efficiency, rate
):
    step = ideal_step(points({"dp": dp, "cp": cp}), network_efficiency=efficiency)
    ring = 2 * (dp * cp - 1) / (dp * cp) * PARAMS * 4 / rate
    assert step.terms["dp_comm_s"] == pytest.approx(ring, rel=0.02)


def test_context_parallelism_shards_activations(points):
    prediction = predict(points({"cp": 1}, {"cp": 8}))
    assert prediction.step_time_s[1] < prediction.step_time_s[0]
    activations = prediction.memory_terms["activations_bytes"]
    assert activations[1] == pytest.approx(activations[0] / 8)


def test_tensor_parallelism_over_nodes_shares_the_nics_of_its_software(points):
    # vTrain's nodes have 4 x 200 Gb/s
    found = traffic(points({"tp": 16, "framework": "Megatron-DeepSpeed"}))
    ring = 2 * 15 / 16 * 4096 * 4096 * 2 / 100e9
    hops = 2 * (2 * 14e-6 + 14 * 3.4e-6)
    assert found.per_layer == pytest.approx(4 * (ring + hops))


def test_equal_stages_lose_the_published_bubble_fraction(points):
    # arXiv 2104.04473: (pp - 1) / m of the ideal time, for stages of equal cost; 1F1B slows the
    # other m - 1 slots by 1 %
    row = {"pp": 4, "gradient_accumulation_steps": 16, "vocab_size": 1}
    step = ideal_step(points(row))
    busy = sum(step.terms[f"{name}_s"] for name in ("gemm", "attention", "elementwise", "head"))
    assert step.terms["bubble_s"] / busy == pytest.approx((3 + 15 * 0.01) / 16, rel=0.01)


def test_nanotron_deals_layers_by_cost_so_the_last_stage_has_fewer(points):
    rows = [{"pp": 4, "framework": name, "vocab_size": 128000} for name in ("nanotron 0.5", "x")]
    by_cost, even = points(*rows).groups
    assert stages_of(even.features, even.stack).last.tolist() == [8]
    # the head weighs 2.6 layers: three stages take ceil(3 x 34.6 / 4) = 26 of 32
    assert stages_of(by_cost.features, by_cost.stack).last.tolist() == [6]


def test_a_pipeline_fills_with_the_layers_that_there_are(points):
    # nanotron deals 9, 9, 8 and 6 of 32 layers: 23 and the head beside the slowest stage's 9
    step = ideal_step(points({"pp": 4, "framework": "nanotron", "vocab_size": 128000}))
    layer_s = sum(step.terms[f"{name}_s"] for name in ("gemm", "attention", "elementwise")) / 9
    head_s = 6 * 128000 * 4096 * 4096 / 312e12
    messages_s = 3 * 2 * 4096 * 4096 * 2 / 300e9
    assert step.terms["bubble_s"] == pytest.approx(23 * layer_s + head_s + messages_s)


def test_a_slow_host_bounds_a_step_of_small_kernels(points):
    row = {"hidden_size": 256, "ffn_hidden_size": 512, "seq_length": 128, "vocab_size": 100}
    prediction = predict(points(row))
    terms = prediction.time_terms
    assert terms["host_s"][0] > 0.8 * prediction.step_time_s[0]
    # 2 ms a layer, and three more layers' worth for embedding and head
    assert prediction.step_time_s[0] == pytest.approx(35 * 2.0e-3, rel=0.2)
    # and four collectives a layer
    slow = ideal_step(points({"tp": 8}), host_collective_s=1.0)
    assert slow.total == pytest.approx(35 * 4 * 1.5, rel=1e-3)


def test_a_pipeline_over_efa_stalls_without_zero_and_not_with_it(points):
    row = {"cluster": "h100-80gb-efa", "pp": 4, "dp": 16, "gradient_accumulation_steps": 16}
    row |= {"framework": "nanotron", "zero_stage": 0}
    rows = (row, {**row, "zero_stage": 1}, {**row, "cluster": "h100-80gb-dgx"})
    stalls = predict(points(*rows)).time_terms["stall_s"]
    assert stalls[0] == pytest.approx(16 * 1.1, rel=0.01)
    assert (stalls[1:] < 0.1).all()


@UNHURRIED
@given(st.lists(layouts, min_size=2, max_size=4))
def test_a_row_is_predicted_alike_alone_and_in_company(rows):
    together, alone = predict(checked(*rows)), [predict(checked(row)) for row in rows]
    assert together.step_time_s == pytest.approx([p.step_time_s[0] for p in alone])
    assert together.memory_bytes == pytest.approx([p.memory_bytes[0] for p in alone])


@UNHURRIED
@given(layouts)
def test_a_newer_gpu_is_faster(layout):
    rows = [{**layout, "cluster": name} for name in ("a100-80gb", "h100-80gb", "b200-180gb")]
    slower, faster, fastest = predict(checked(*rows)).step_time_s
    assert slower >= faster >= fastest


def test_a_cp_group_over_nodes_shares_the_nics_and_tp_stays_inside(points):
    held = 4096 / 4 * 2 * (4096 + 1024) / 4 * 2
    found = traffic(points({"num_kv_heads": 8, "cp": 4, "tp": 4}))
    # two ranks of a group on a node: half of what it holds leaves, by 8 GPUs over 200 GB/s
    across = 2 * 8 * held * 2 / 4 / 200e9
    rings = 4 * 2 * 3 / 4 * 1024 * 4096 * 2 / 300e9
    assert found.per_layer == pytest.approx(across + rings)
    # 16 ranks of 2 tp ranks on 4 nodes, whose measured bus is 160 GB/s: 12 of 16 parts leave
    found = traffic(points({**EFA, "cp": 16, "tp": 2}))
    across = 2 * 8 * (4096 / 16 * 2 * 8192 / 2 * 2) * 12 / 16 / 160e9
    rings = 4 * 2 / 2 * 256 * 4096 * 2 / 450e9
    assert found.per_layer == pytest.approx(across + rings)


def test_an_encoder_decoder_takes_its_second_attention_and_both_streams(points):
    t5 = {"num_encoder_layers": 32, "num_layers": 32, "family": "t5", "gated_mlp": True}
    one, both = (ideal_step(points(row)).terms["gemm_s"][0] for row in ({}, t5))
    cross = 4 * 4096**2
    assert both / one == pytest.approx((2 * LAYER + cross) / LAYER)
    assert points(t5).tokens_per_step.tolist() == [2 * 4096]


def test_memory_that_is_nearly_full_stalls_only_where_that_was_seen(points):
    rows = [{"cluster": name, "dp": 16} for name in ("h100-80gb-efa", "h100-80gb-dgx")]
    for row, stalls in zip(rows, (True, False), strict=True):
        (group,) = points({**row, "gradient_accumulation_steps": 8}).groups
        f = group.features
        full = step_of(group, f, group.start, np.array([1.2])).terms["stall_s"][0]
        assert bool(full > 1) is stalls


def test_weak_scaling_of_zero_3_loses_to_tensor_parallelism_at_scale():
    # arXiv 2411.13055: from 128 to 2,048 H100 pure sharding loses 37 % a GPU and tp of 2 wins
    def per_gpu(world_size, tp):
        row = {
            "cluster": "h100-80gb-dgx", "zero_stage": 3, "tp": tp, "dp": world_size // tp,
            "micro_batch_size": 2 * tp, "fused_norm": True,
        }  # fmt: skip
        points = checked(row)
        return points.tokens_per_step[0] / predict(points).step_time_s[0] / world_size

    assert per_gpu(2048, tp=1) / per_gpu(128, tp=1) == pytest.approx(1 - 0.37, abs=0.08)
    assert per_gpu(128, tp=1) > per_gpu(128, tp=2)
    assert per_gpu(2048, tp=1) < per_gpu(2048, tp=2)


@UNHURRIED
@given(st.sampled_from([1, 2, 3, 4, 5, 8, 12]), st.integers(1, 12), st.integers(1, 12))
def test_an_encoder_decoder_in_a_pipeline_keeps_all_its_layers(pp, encoder, decoder):
    row = {
        "family": "t5", "num_encoder_layers": encoder, "num_layers": max(decoder, pp), "pp": pp,
        "dp": 8,
    }  # fmt: skip
    found = checked(row)
    (group,) = found.groups
    stages = stages_of(group.features, group.stack)
    ends = stages.first + stages.last if pp > 1 else stages.last
    layers = encoder + max(decoder, pp)
    # of the stages between the ends the fullest stands for all
    assert ends + max(pp - 2, 0) * stages.middle >= layers - 1e-9
    assert (stages.middle <= layers).all()
    prediction = predict(found)
    assert np.isfinite(prediction.step_time_s).all()
    assert sum(prediction.time_terms.values()) == pytest.approx(prediction.step_time_s)


def test_tensor_parallelism_over_nodes_waits_for_every_rank_of_its_ring(points, monkeypatch):
    # 8 nodes of 8 over EFA: twice around a ring of 64, and a bus of 100 GB/s
    row = {"tp": 64, "num_heads": 64, "seq_length": 64, "cluster": "h100-80gb-efa"}
    monkeypatch.setattr(communication, "_TP_NETWORK_LATENCY_S", 1e-3)
    reduced, scattered = traffic(points(row, {**row, "sequence_parallel": True})).per_layer
    ring = 2 * 63 / 64 * 64 * 4096 * 2 / 100e9
    assert reduced == pytest.approx(4 * (ring + 128e-3))
    assert scattered == reduced  # a scatter and a gather go around once each


GB = 1e9


@pytest.mark.parametrize(
    ("message", "ranks", "seconds"),
    [
        # 8 ranks: 7/8 x 1.2 GB / 300 GB/s and 7 hops of 3.4 us
        (1.2 * GB, 8, 3.5e-3 + 23.8e-6),
        # 32 ranks on 4 nodes: 31/32 x 3.2 GB / 200 GB/s, 4 hops of 14 us and 28 of 3.4 us
        (3.2 * GB, 32, 15.5e-3 + 56e-6 + 95.2e-6),
        (GB, 1, 0),
    ],
)
def test_a_ring_sends_its_part_and_enters_each_node_once_a_pass(points, message, ranks, seconds):
    (group,) = points({}).groups
    found = ring_s(group, group.features, IDEAL, np.array([message]), np.array([ranks]), 1)
    assert found == pytest.approx(seconds)


def test_mesh_ranks_have_their_own_links_and_switch_ranks_all():
    mesh, switch = GPUS["mi300x-192gb"], GPUS["h100-80gb"]
    sizes = np.array([2.0, 4.0, 8.0])
    assert link(mesh, sizes) == pytest.approx([64 * GB, 3 * 64 * GB, 448 * GB])
    assert link(switch, sizes) == pytest.approx([450 * GB] * 3)
    assert link(mesh, 2) == pytest.approx(64 * GB)


def test_a_tp_group_over_nodes_is_no_faster_than_inside_one(points):
    # L40S: 32 GB/s over PCIe, but 8 x 200 Gb/s out of a node
    row = {"cluster": "l40s-48gb", "attention": "flash2"}
    steps = ideal_step(points({**row, "tp": 8}, {**row, "tp": 16})).terms["tp_comm_s"]
    assert steps[1] > steps[0] * (15 / 16) / (7 / 8) * 0.999
