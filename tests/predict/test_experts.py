"""Mixtures of experts: bytes and seconds worked by hand, of a machine without overheads."""

import pytest

from scaling.layout.layout import Layout, refusals
from scaling.predict.cost import communication
from scaling.predict.cost.model import predict
from tests.predict.conftest import HEAD, ideal_step, memory, traffic
from tests.shipped import MODELS

# The shape of tests.predict.conftest with eight experts of 2,048, two a token, in all of 32 layers
EXPERTS = {"num_experts": 8, "experts_per_token": 2, "expert_ffn_hidden_size": 2048}
ATTENTION = 4 * 4096**2
EXPERT = 3 * 4096 * 2048
HELD = 32 * ATTENTION + 2 * HEAD  # what no expert has

pytestmark = pytest.mark.usefixtures("no_overheads")


def quiet_step(points, **parameters):
    return ideal_step(points, **{"expert_half_size": 1e-9, **parameters})


FLOP_S = 6 * 4096 * 32 / 312e12  # seconds a weight of each layer
SENT = 32 * 4 * 4096 * 4096 * 2  # bytes of a copy of each token, four times a layer
LATENT = {
    "attention_kind": "mla", "query_rank": 1536, "key_value_rank": 512, "rotary_head_dim": 64,
    "value_head_dim": 128, "head_dim": 128,
}  # fmt: skip
LATENT_WEIGHTS = 1536 * (4096 + 32 * 192) + 4096 * 576 + 512 * 32 * 256 + 32 * 128 * 4096
NODES = {
    **EXPERTS, "dp": 32, "ep": 8, "gpus_per_node": 2, "num_experts": 32, "experts_per_token": 8,
}  # fmt: skip
DEEP_EP = {"framework": "Automodel", "activation_checkpointing": "none"}


@pytest.mark.parametrize(
    ("row", "terms"),
    [
        # a token pays for the experts it takes, and for the router
        (EXPERTS, {"gemm_s": FLOP_S * (ATTENTION + 2 * EXPERT + 8 * 4096)}),
        # of 32 layers 8 are dense, 24 have a third expert for every token
        ({**EXPERTS, "shared_experts": 1, "dense_layers": 8}, {"gemm_s": FLOP_S
            * (ATTENTION + (8 * 3 * 4096 * 11008 + 24 * (3 * EXPERT + 8 * 4096)) / 32)}),
        # an all-to-all in the node takes its links four times a layer
        ({**EXPERTS, "dp": 8, "ep": 8}, {"ep_comm_s": SENT * 2 * 7 / 8 / 300e9}),
        ({**EXPERTS, "dp": 8}, {"ep_comm_s": 0}),
        ({**EXPERTS, "dp": 8, "ep": 8, "activation_checkpointing": "full"},
            {"ep_comm_s": 1.5 * SENT * 2 * 7 / 8 / 300e9}),
        # 8 ranks on 4 nodes of 2: six of eight copies leave, over 200 GB/s shared by the 2 GPUs
        (NODES, {"ep_comm_s": SENT * 8 * 6 / 8 / 100e9}),
        # a token wanted by 8 experts on 4 nodes reaches 4 (1 - (3 / 4)^8) of them, 3 in 4 elsewhere
        ({**NODES, **DEEP_EP}, {"ep_comm_s": SENT * 4 * (1 - 0.75**8) * 3 / 4 / 100e9}),
        # latent attention: scores over 192, values over 128, so 160 a head
        (LATENT, {"gemm_s": FLOP_S * (LATENT_WEIGHTS + 3 * 4096 * 11008),
            "attention_s": 32 * 3.5 * (4 * 4096**2 * 32 * 160 / 2) / (312e12 * 0.5)}),
    ],
)  # fmt: skip
def test_terms_of_a_step_are_as_worked_by_hand(points, row, terms):
    found = quiet_step(points(row)).terms
    assert {name: found[name] for name in terms} == {
        name: pytest.approx(seconds) for name, seconds in terms.items()
    }


@pytest.mark.parametrize(
    ("ep", "reduced"),  # weights of experts, by the ranks that hold the same
    [(1, 2 * 7 / 8 * 32 * 8 * EXPERT), (4, 2 * 1 / 2 * 32 * 8 * EXPERT / 4), (8, 0)],
)
def test_gradients_of_experts_are_reduced_by_the_ranks_that_hold_the_same(points, ep, reduced):
    found = quiet_step(points({**EXPERTS, "dp": 8, "vocab_size": 1, "ep": ep})).terms["dp_comm_s"]
    shared = 2 * 7 / 8 * 32 * ATTENTION
    assert found == pytest.approx((shared + reduced) * 4 / 300e9, rel=0.02)


FULL = {"activation_checkpointing": "full"}


@pytest.mark.parametrize(
    ("row", "waited_s"), [({"ep": 2}, 32e-3), ({"ep": 2, **FULL}, 32e-3 * 4 / 3), ({}, 0)]
)
def test_the_host_waits_for_the_tokens_of_each_expert(points, monkeypatch, row, waited_s):
    asked, seconds = points({**EXPERTS, "dp": 2, **row}), []
    for waiting_s in (1e-3, 0.0):
        monkeypatch.setattr(communication, "_HOST_WAITS_S", waiting_s)
        seconds.append(quiet_step(asked).terms["ep_comm_s"][0])
    assert seconds[0] - seconds[1] == pytest.approx(waited_s)


def test_a_dense_row_beside_experts_sends_no_expert_messages(points):
    dense = {"cluster": "h100-80gb-dgx", "dp": 16, "zero_stage": 3}
    alone, beside = predict(points(dense)), predict(points(dense, {**dense, **EXPERTS}))
    assert beside.step_time_s[0] == alone.step_time_s[0]


def test_few_tokens_an_expert_leave_its_tiles_empty(points):
    # 4,096 x 2 / 8 = 1,024 tokens each: half a size of 1,024 in every dimension
    (wide,) = quiet_step(points(EXPERTS), expert_half_size=1024.0).terms["gemm_s"]
    (full,) = quiet_step(points(EXPERTS)).terms["gemm_s"]
    padded = (1024 + 1024) * ((4096 + 1024) * (2 * 2048 + 1024) + (2048 + 1024) * (4096 + 1024))
    assert wide - full == pytest.approx(32 * 6 * 8 * (padded - 1024 * EXPERT) / 312e12)
    # dealt to 8 ranks an expert gets the tokens of all of them
    dealt = quiet_step(points({**EXPERTS, "dp": 8, "ep": 8}), expert_half_size=1024.0)
    assert full < dealt.terms["gemm_s"] < wide


def test_expert_state_is_gathered_and_updated_by_ranks_that_share_it(points):
    row = {**EXPERTS, "dp": 8, "ep": 4}
    mine = 32 * 8 * EXPERT / 4  # which two ranks hold
    updated = ideal_step(points({**row, "zero_stage": 1})).terms["optimizer_s"]
    assert updated == pytest.approx((HELD / 8 + mine / 2) * 34 / (2.039e12 * 0.85))
    rings = 7 / 8 * 2 * HELD / 300e9 + 32 * 7 * 3.4e-6, 1 / 2 * 2 * mine / 300e9 + 32 * 3.4e-6
    found = traffic(points({**row, "zero_stage": 3})).gathering
    assert found == pytest.approx(3 * sum(rings))


def test_ep_ranks_hold_experts_and_the_rest_of_dp_their_state(points):
    row = {**EXPERTS, "dp": 8, "zero_stage": 1}
    alone, dealt = (memory(points({**row, "ep": ep})).terms for ep in (1, 4))
    experts = 32 * 8 * EXPERT
    assert alone["weights_bytes"] == pytest.approx(2 * (HELD + experts))
    assert dealt["weights_bytes"] == pytest.approx(2 * (HELD + experts / 4))
    assert alone["optimizer_bytes"] == pytest.approx(12 * (HELD + experts) / 8)
    # 4 ranks hold different experts, so 2 share the state of each: the same bytes in all
    assert dealt["optimizer_bytes"] == pytest.approx(12 * (HELD / 8 + experts / 4 / 2))
    gathered = memory(points({**row, "ep": 4, "zero_stage": 3})).terms
    # and of the layer that is computed its experts are gathered from the other of the 2
    layer = ATTENTION + 8 * EXPERT / 4
    assert gathered["weights_bytes"] == pytest.approx(2 * (HELD / 8 + experts / 8 + layer))


def test_partial_shards_hold_expert_state_with_the_cp_ranks(points):
    row = {**EXPERTS, "dp": 8, "cp": 2, "zero_stage": 3, "zero_shard_size": 2}
    experts = 32 * 8 * EXPERT
    held = memory(points(row)).terms["optimizer_bytes"]
    assert held == pytest.approx(12 * (HELD + experts) / (2 * 2))
    # of 8 ranks that share a copy 2 hold the same fourth of the experts
    row = {**EXPERTS, "dp": 16, "ep": 4, "zero_stage": 3, "zero_shard_size": 8}
    dealt = memory(points(row)).terms["optimizer_bytes"]
    assert dealt == pytest.approx(12 * (HELD / 8 + experts / 4 / 2))


def test_the_permuted_copies_of_a_token_are_kept(points):
    one, two = (
        memory(points({**EXPERTS, "experts_per_token": k})).terms["activations_bytes"]
        for k in (1, 2)
    )
    assert two - one == pytest.approx(32 * 4096 * (4 * 4096 + 8 * 2048))


def test_experts_without_a_gate_cost_an_ungated_feed_forward(points):
    def of(width):
        row = {**EXPERTS, "expert_ffn_hidden_size": width, "gated_mlp": False}
        moved = quiet_step(points(row)).terms["elementwise_s"]
        return moved, memory(points(row)).terms["activations_bytes"]

    (wide_s, wide), (narrow_s, narrow) = of(4096), of(2048)
    # two copies of a token: 9 passes of 2 bytes, and 4 bytes kept, of each of 2,048 elements more
    elements = 32 * 4096 * 2 * 2048
    assert wide_s - narrow_s == pytest.approx(9 * 2 * elements / (2.039e12 * 0.85))
    assert wide - narrow == pytest.approx(4 * elements)


def test_a_second_copy_leaves_expert_state_spread_over_all(points):
    row = {**EXPERTS, "framework": "scaling", "dp": 16, "zero_stage": 3}
    second, whole = (quiet_step(points({**row, "zero_shard_size": n})).terms for n in (8, None))
    assert second["optimizer_s"] == pytest.approx(whole["optimizer_s"])
    assert traffic(points({**row, "zero_shard_size": 8})).gradients == 0


def test_an_all_to_all_waits_for_its_ranks_however_little_it_sends(points, monkeypatch):
    row = {**EXPERTS, "dp": 8, "ep": 8}
    (none,) = quiet_step(points(row)).terms["ep_comm_s"]
    monkeypatch.setattr(communication, "TP_LATENCY_S", 1e-3)
    (waits,) = quiet_step(points(row)).terms["ep_comm_s"]
    assert waits - none == pytest.approx(32 * 4 * 1.5 * 1e-3)  # log2(8) / 2, stated for 4 ranks


def test_all_wait_for_the_rank_of_the_fullest_expert(points):
    row = {**EXPERTS, "dp": 8}
    even, skewed = (
        quiet_step(points({**row, "ep": 8, "routing": r})) for r in ("balanced", "skewed:2")
    )
    assert skewed.terms["ep_comm_s"] == pytest.approx(2 * even.terms["ep_comm_s"])
    busier = skewed.terms["gemm_s"] - even.terms["gemm_s"]
    assert busier == pytest.approx(FLOP_S * 2 * EXPERT)
    # a rank with 4 of 8 experts: one of twice the mean, three of 6 / 7
    four = quiet_step(points({**row, "ep": 2, "routing": "skewed:2"})).terms["ep_comm_s"]
    fair = quiet_step(points({**row, "ep": 2})).terms["ep_comm_s"]
    assert four / fair == pytest.approx((2 + 3 * 6 / 7) / 4)
    # on one rank the others get less
    alone = quiet_step(points({**row, "routing": "skewed:2"})).terms["gemm_s"]
    assert alone == pytest.approx(quiet_step(points(row)).terms["gemm_s"])


def test_module_recomputation_fits_where_full_recomputation_fits(points):
    row = {**EXPERTS, "framework": "Megatron-Bridge", "micro_batch_size": 16, "dp": 8, "ep": 8}
    open_, kept, again = (
        predict(points({**row, "activation_checkpointing": how})) for how in (None, "none", "full")
    )
    assert [bool(one.fits[0]) for one in (open_, kept, again)] == [True, False, True]
    assert again.memory_bytes < open_.memory_bytes < kept.memory_bytes
    assert sum(v[0] for v in open_.memory_terms.values()) == pytest.approx(open_.memory_bytes[0])


@pytest.mark.parametrize(
    ("model", "layout", "sentences"),
    [
        ("tiny_experts", {"ep": 3, "dp": 3}, ["num_experts=8 is not divisible by ep=3"]),
        ("tiny_experts", {"ep": 4, "dp": 2}, ["dp=2 is not divisible by ep=4"]),
        ("tiny_experts", {"ep": 8, "dp": 2, "cp": 2}, ["dp=2 x cp=2 is not divisible by ep=8"]),
        ("tiny_experts", {"ep": 4, "dp": 2, "cp": 2}, []),
        ("tiny", {"ep": 2, "dp": 2, "routing": "skewed:2"},
            ["ep=2 deals experts to ranks, and this model has none",
             "routing=skewed:2 is among experts, and this model has none"]),
    ],
)  # fmt: skip
def test_ep_takes_its_ranks_out_of_dp_and_cp(model, layout, sentences):
    assert list(refusals(MODELS[model], Layout(seq_length=64, **layout))) == sentences
