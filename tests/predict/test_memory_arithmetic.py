"""Bytes of a rank worked by hand, and what must hold for every layout."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling.predict.cost.model import predict
from tests.predict.conftest import HEAD, LAYER, PARAMS, checked, memory
from tests.shipped import MODELS

STATE = ("weights_bytes", "gradients_bytes", "optimizer_bytes")

# A shared machine may pause at any moment: no test here is about time.
UNHURRIED = settings(deadline=None, max_examples=25)


@pytest.mark.parametrize(
    ("zero_stage", "bytes_per_parameter"),
    [
        (0, 2 + 4 + 12),  # weights, fp32 gradients, fp32 copy and two moments
        (1, 2 + 4 + 12 / 8),
        (2, 2 + (4 + 12) / 8),
        (3, (2 + 4 + 12) / 8),
    ],
)
def test_each_zero_stage_divides_one_more_term_by_dp(points, zero_stage, bytes_per_parameter):
    for ranks in ({"dp": 8}, {"dp": 64, "zero_shard_size": 8} if zero_stage else {"dp": 64}):
        terms = memory(points({**ranks, "zero_stage": zero_stage})).terms
        state = sum(terms[name] for name in STATE)
        gathered = 2 * LAYER * (zero_stage == 3)  # the layer that is computed
        assert state == pytest.approx(PARAMS * bytes_per_parameter + gathered)


@pytest.mark.parametrize("framework", ["plain", "Megatron-Core", "Automodel", "torchtitan"])
def test_gradients_and_moments_are_as_wide_as_fp32_weights_in_any_software(points, framework):
    row = {"dp": 1, "precision": "fp32", "framework": framework, "cluster": "h100-80gb-dgx"}
    terms = memory(points({**row, "zero_stage": 0})).terms
    found = [terms[name] / PARAMS for name in STATE]
    assert found == pytest.approx([4, 4, 8])  # no second copy of weights


@pytest.mark.parametrize("framework", ["scaling", "scaling torch"])
def test_a_compiled_point_has_16_bit_states_if_asked(points, framework):
    row = {"framework": framework, "dp": 8, "zero_stage": 1, "compile": True}
    wide = memory(points(row)).terms
    short = memory(points({**row, "optimizer_precision": "bf16"})).terms
    assert wide["optimizer_bytes"] == pytest.approx(12 * PARAMS / 8)
    assert short["optimizer_bytes"] == pytest.approx(6 * PARAMS / 8)
    fused = memory(points({**row, "fused_cross_entropy": True})).terms
    assert wide["logits_bytes"] > 10 * 4096 * 32000 * 0.99
    # Liger keeps the gradients of hidden states and head, and works on an fp32 copy of the head's
    working = 4 * HEAD + 2 * HEAD
    assert fused["logits_bytes"] == pytest.approx(2 * 4096 * 4096 + working)


def test_compiled_pipelines_hold_the_state_that_their_engines_do(points):
    """DeepSpeed deals it without ZeRO in bf16; torch has whole gradients until the step's end."""
    row = {"compile": True, "dp": 8, "pp": 4, "num_layers": 32, "gradient_accumulation_steps": 8}
    deepspeed = memory(points({**row, "framework": "scaling"})).terms
    assert deepspeed["optimizer_bytes"] == pytest.approx(12 * (8 * LAYER + HEAD) / 8, rel=0.01)
    torch = memory(points({**row, "framework": "scaling torch", "zero_stage": 3})).terms
    assert torch["gradients_bytes"] == pytest.approx(8 * (torch["weights_bytes"] - 2 * LAYER))


@pytest.mark.parametrize(
    ("schedule", "passes"), [("zero_bubble", 4), ("zbv", 4), ("dualpipev", 4.5)]
)
def test_a_v_has_embedding_head_and_loss_on_its_first_rank(points, schedule, passes):
    row = {"pp": 4, "gradient_accumulation_steps": 8, "vocab_size": 320000}
    row |= {"pipeline_schedule": schedule, "framework": "torchtitan"}
    found, layer = memory(points(row)), memory(points({"framework": "torchtitan"}))
    in_v = schedule in ("zbv", "dualpipev")
    kept = layer.terms["activations_bytes"] / 32 * 8 * passes
    assert found.terms["activations_bytes"] == pytest.approx(kept)
    assert found.terms["weights_bytes"] == pytest.approx(2 * (8 * LAYER + 10 * HEAD * (1 + in_v)))
    assert found.terms["logits_bytes"] > 0


@pytest.mark.parametrize(
    ("row", "fourfold", "names"),
    [
        ({"tp": 4}, {"tp": 1}, ("weights_bytes", "optimizer_bytes", "logits_bytes")),
        # the first stage holds as many micro-batches as there are stages
        ({"pp": 4}, {"pp": 4, "gradient_accumulation_steps": 16}, ("activations_bytes",)),
    ],
)
def test_a_fourth_of_the_ranks_or_micro_batches_is_a_fourth_of_the_bytes(
    points, row, fourfold, names
):
    found, more = memory(points(row)).terms, memory(points(fourfold)).terms
    for name in names:
        assert more[name] == pytest.approx(4 * found[name])


def test_the_loss_and_the_recomputed_layer_never_share_the_peak(points):
    one_layer = memory(points({})).terms["activations_bytes"] / 32
    rows = [{"activation_checkpointing": "full", "vocab_size": v} for v in (100, 512000)]
    layer, loss = (memory(points(row)).terms for row in rows)
    # two bytes per token and hidden element of each layer
    assert layer["activations_bytes"] == pytest.approx(32 * 2 * 4096 * 4096 + one_layer)
    assert layer["logits_bytes"] == 0
    assert loss["activations_bytes"] == pytest.approx(32 * 2 * 4096 * 4096)
    assert loss["logits_bytes"] == pytest.approx(10 * 4096 * 512000)
    # 8 layers' activations of one micro-batch in flight against the logits of a last stage
    last = memory(points({"pp": 2, "vocab_size": 512000})).terms
    assert last["logits_bytes"] == loss["logits_bytes"]


def test_selective_checkpointing_keeps_all_but_the_scores(points):
    selective, none, flash = (
        memory(points({"attention": attention, "activation_checkpointing": again}))
        for attention, again in (("math", "selective"), ("math", "none"), ("flash2", "none"))
    )
    assert flash.total < selective.total < none.total
    # but for the one layer that is recomputed, or for the loss, whose place it takes
    scores = none.terms["activations_bytes"] - flash.terms["activations_bytes"]
    more = selective.terms["activations_bytes"] - flash.terms["activations_bytes"]
    assert more == pytest.approx(scores / 32)
    assert selective.terms["logits_bytes"] == 0


def test_a_gpt_layer_without_flash_keeps_what_korthikanti_counts(points):
    # arXiv 2205.05198: s b h (34 + 5 a s / h) bytes a layer with dropout, whose masks (3 s b h and
    # 1 a s^2 of the 5) we have not: the same to a fifth
    point = points({"gated_mlp": False, "ffn_hidden_size": 4 * 4096, "attention": "math"})
    kept = memory(point).terms["activations_bytes"] / 32
    assert kept == pytest.approx(4096 * 4096 * (34 + 5 * 32 * 4096 / 4096), rel=0.2)


def test_sequence_parallelism_shards_what_tensor_parallelism_replicates(points):
    without, with_it = (
        memory(points({"tp": 4, "sequence_parallel": sp}), late_release=0.2).terms
        for sp in (False, True)
    )
    assert with_it["activations_bytes"] < 0.7 * without["activations_bytes"]


layouts = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 4, 8]),
        "pp": st.sampled_from([1, 2, 3, 4, 8]),
        "dp": st.sampled_from([1, 2, 8, 64]),
        "zero_stage": st.integers(0, 3),
        "micro_batch_size": st.integers(1, 16),
        "gradient_accumulation_steps": st.integers(1, 64),
        "sequence_parallel": st.booleans(),
        "fused_norm": st.booleans(),
        "attention": st.sampled_from(["math", "fused_softmax", "flash1", "flash2"]),
        "activation_checkpointing": st.sampled_from(["none", "selective", "full"]),
    }
)


def total(*rows) -> np.ndarray:
    return memory(checked(*rows)).total


@UNHURRIED
@given(layouts)
def test_a_higher_zero_stage_never_takes_more_memory(layout):
    stages = total(*({**layout, "zero_stage": stage} for stage in range(4)))
    assert (np.diff(stages) <= 1e-6 * stages[0]).all()


@UNHURRIED
@given(layouts)
def test_recomputing_everything_takes_less_memory_than_keeping_it(layout):
    kept, recomputed = (
        total({**layout, "activation_checkpointing": again})[0] for again in ("none", "full")
    )
    assert recomputed < kept


def test_an_encoder_decoder_has_the_parameters_its_shape_counts():
    shape = MODELS["mt5_xl"]
    row = {**dataclasses.asdict(shape), "model": "mt5_xl", "dp": 1}
    terms = memory(checked(row)).terms
    # norms and position biases are left out: below a thousandth
    assert terms["weights_bytes"] == pytest.approx(2 * shape.total_params, rel=1e-3)


def test_fits_compares_what_is_needed_with_what_is_there(points):
    prediction = predict(points({"dp": 1}, {"dp": 8, "tp": 8, "zero_stage": 1}))
    assert prediction.fits.tolist() == [False, True]
    assert prediction.capacity_bytes[0] == pytest.approx(79.15 * 2**30, rel=1e-3)


def test_an_offloaded_optimizer_leaves_weights_and_gradients_on_the_gpu(points):
    row = {"dp": 8, "zero_stage": 1}
    here, away = (memory(points({**row, "optimizer_offload": where})) for where in ("none", "cpu"))
    assert away.terms["optimizer_bytes"] == 0
    assert here.total - away.total == pytest.approx(here.terms["optimizer_bytes"])
