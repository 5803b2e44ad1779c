"""Mixtures of experts: transformers' logits, one curve in every layout, tokens counted."""

import dataclasses
import functools
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from scaling.layout.engines import ENGINES, engine_refusals
from scaling.layout.shapes import ModelShape
from scaling.study.point import Point
from scaling.train.model.expert_layer import Experts
from scaling.train.parallel.expert_parallel import copy_for_experts, inverse_of, permute
from tests.points import TINY, tiny_point
from tests.train.conftest import Learn, Train
from tests.train.covering import Case, covering, product
from tests.train.reference import Curve, reference_curve
from tests.train.test_model import blueprint
from tests.train.test_oracles import IDS, as_llama, decoder, logits_of, renamed
from tests.train.test_parity import CLIPPING, bounds, learned_point, refused

MIXED = dataclasses.replace(TINY, num_experts=4, experts_per_token=2, expert_ffn_hidden_size=48)


def as_qwen3(ours: dict[str, torch.Tensor], shape: ModelShape) -> dict[str, torch.Tensor]:
    """Weights by transformers' names, of which gate and up are one."""
    layer, experts = "model.layers.{}.", "layers.{}.feed_forward.experts"
    names = {
        f"{layer}mlp.gate.weight": "layers.{}.feed_forward.router.weight",
        f"{layer}mlp.experts.gate_up_proj": f"{experts}.both",
        f"{layer}mlp.experts.down_proj": f"{experts}.down",
        f"{layer}self_attn.q_norm.weight": "layers.{}.attention.query_norm.weight",
        f"{layer}self_attn.k_norm.weight": "layers.{}.attention.key_norm.weight",
    }
    for held in map(experts.format, range(shape.num_layers)):
        ours[f"{held}.both"] = torch.cat((ours[f"{held}.gate"], ours[f"{held}.up"]), 1)
    return as_llama(ours, shape, mlp=()) | renamed(ours, names, shape.num_layers)


@pytest.mark.parametrize("normalised", [False, True])
def test_a_qwen3_of_experts_gives_the_logits_of_transformers(normalised: bool) -> None:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    shape = dataclasses.replace(
        MIXED, query_key_norm=True, normalised_router=normalised, head_dim=16
    )
    ours = decoder(shape, routing="learned")
    config = Qwen3MoeConfig(  # type: ignore[call-arg]
        vocab_size=256, hidden_size=64, moe_intermediate_size=48, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=4, head_dim=16, num_experts=4,
        num_experts_per_tok=2, norm_topk_prob=normalised, rms_norm_eps=1e-5, rope_theta=10_000.0,
    )  # fmt: skip
    theirs = Qwen3MoeForCausalLM(config)
    theirs.load_state_dict(as_qwen3(dict(ours.named_parameters()), shape))
    torch.testing.assert_close(logits_of(ours), theirs(IDS).logits, atol=1e-4, rtol=0)


# One size of every kind: shared and dense layers, uneven routing, a router that learns.
LEARNING = dataclasses.replace(MIXED, shared_experts=1, dense_layers=1, query_key_norm=True)
VALUES: dict[str, tuple[Any, ...]] = {
    "engine": tuple(ENGINES),
    "ep": (1, 2),
    "zero_stage": (0, 1, 2, 3),
    "tp": (1, 2),
    "cp": (1, 2),
    "pp": (1, 2),
    "dp": (1, 2),
    "gradient_accumulation_steps": (1, 4),
    "pipeline_schedule": ("1f1b", "dualpipev"),
    "sequence_parallel": (False, True),
    "optimizer_offload": ("none", "cpu"),
    "activation_checkpointing": ("none", "full"),
    "routing": ("learned", "skewed:2"),
}
# Eight ranks, where neighbours of the data group are not neighbours among ranks; others.
FARTHER: list[Case] = [
    {"engine": "torch", "dp": 4, "tp": 2, "ep": 2, "zero_stage": 3},
    {"engine": "torch", "dp": 2, "pp": 2, "tp": 2, "ep": 2, "zero_stage": 1,
     "sequence_parallel": True, "gradient_accumulation_steps": 2},
    {"engine": "torch", "dp": 2, "pp": 2, "ep": 2, "zero_stage": 3,
     "pipeline_schedule": "interleaved", "virtual_stages": 2, "gradient_accumulation_steps": 2},
    {"dp": 4, "tp": 2, "ep": 2, "zero_stage": 3},
    # groups of more than two; 16 bits
    *({"engine": engine, "dp": 4, "ep": 4, "zero_stage": 2} for engine in ENGINES),
    {"dp": 4, "ep": 2, "zero_stage": 3},
    *({"engine": engine, "dp": 2, "pp": 2, "ep": 2, "precision": "bf16",
       "gradient_accumulation_steps": 2} for engine in ENGINES),
    *({"dp": 2, "ep": 2, "precision": "bf16", "zero_stage": stage} for stage in (0, 2)),
]  # fmt: skip
# Clipped gradients come near Adam's epsilon, so it sees a norm or a scale that is wrong.
CLIPPED: list[Case] = [
    {"dp": 4, "ep": 2, "zero_stage": 1},
    {"dp": 2, "tp": 2, "ep": 2, "zero_stage": 3},
    {"dp": 2, "pp": 2, "ep": 2, "zero_stage": 1, "gradient_accumulation_steps": 2},
    {"engine": "torch", "dp": 2, "tp": 2, "ep": 2, "zero_stage": 3},
]


def every_two() -> list[Case]:
    """A few of all layouts of four ranks, in which every two values meet."""
    possible = []
    for case in product({name: VALUES[name] for name in ("tp", "cp", "pp", "dp", "ep")}):
        ranks = case["tp"] * case["cp"] * case["pp"] * case["dp"]
        if ranks > 4 or case["dp"] * case["cp"] % case["ep"]:
            continue
        possible += [
            chosen | case
            for chosen in product({n: v for n, v in VALUES.items() if n not in case})
            if case["dp"] * chosen["gradient_accumulation_steps"] <= 8
            and not refused(LEARNING, tiny_point(**chosen | case).layout)
        ]
    by_engine = ([case for case in possible if case["engine"] == engine] for engine in ENGINES)
    return [case for cases in by_engine for case in covering(cases)]


def mixture(gradient_clipping: float = 0.0, **layout: Any) -> Point:
    """Two layers if no pipeline splits them, as in test_parity: one dense, one of experts."""
    point = learned_point(LEARNING, {"routing": "learned"} | layout)
    return dataclasses.replace(point, gradient_clipping=gradient_clipping)


def name_of(point: Point) -> str:
    return f"{point.layout.engine} {point.layout.label} dp{point.layout.dp}"


@functools.cache
def curve_of_one_process(shape: ModelShape, routing: str, gradient_clipping: float) -> Curve:
    point = dataclasses.replace(mixture(gradient_clipping, routing=routing), shape=shape)
    return reference_curve(point)


@pytest.mark.ranks
@pytest.mark.parametrize(
    "point",
    [
        *(mixture(**layout) for layout in (*every_two(), *FARTHER)),
        *(mixture(CLIPPING, **layout) for layout in CLIPPED),
    ],
    ids=name_of,
)
def test_a_mixture_learns_the_same_in_every_layout(learn: Learn, point: Point) -> None:
    clipping = point.gradient_clipping
    assert not list(engine_refusals(point.shape, point.layout, clipping))
    alone = curve_of_one_process(point.shape, point.layout.routing, clipping)
    loss, norm = bounds(point)
    for rank in learn(point):
        assert rank["losses"] == pytest.approx(alone.losses, abs=loss)
        assert rank["grad_norms"] == pytest.approx(alone.grad_norms, rel=norm)


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        ({"dp": 4, "zero_stage": 3, "zero_shard_size": 2}, "hold different experts"),
        ({"dp": 2, "pp": 4, "zero_stage": 1}, "a stage has none of the layers with experts"),
        ({"dp": 2}, "leaves out weights of experts"),
        ({"dp": 2, "precision": "bf16"}, "leaves out weights of experts"),
    ],
)
def test_experts_that_deepspeed_would_train_wrongly_are_refused(
    layout: dict[str, Any], reason: str
) -> None:
    point = mixture(ep=2, **layout)
    (sentence,) = engine_refusals(point.shape, point.layout, CLIPPING)
    assert reason in sentence


@pytest.mark.ranks
@pytest.mark.parametrize("engine", ENGINES)
def test_a_rank_says_how_uneven_tokens_were_and_what_their_travel_took(
    train: Train, engine: str
) -> None:
    layout = {"engine": engine, "dp": 2, "ep": 2, "zero_stage": 1, "routing": "skewed:2"}
    results = train(tiny_point(shape=LEARNING, **layout))
    for rank in results.values():
        # of two experts a token, one is always the first: half of all, with a mean of a quarter
        assert rank.expert_imbalance == 2.0
        assert rank.spent is not None
        assert rank.spent["ep_comm_s"] is not None
        assert rank.spent["ep_comm_s"] > 0


@pytest.mark.ranks
def test_it_counts_every_chunk_that_the_rank_holds(train: Train) -> None:
    layout = {"pp": 2, "pipeline_schedule": "interleaved", "virtual_stages": 2}
    point = tiny_point(
        shape=LEARNING, engine="torch", gradient_accumulation_steps=2, routing="skewed:2", **layout
    )
    # the first rank's first chunk is the dense layer
    assert [rank.expert_imbalance for rank in train(point).values()] == [2.0, 2.0]


@pytest.mark.parametrize("counts", [[5, 0, 8, 3], [0, 0, 16, 0]])
def test_grouped_kernels_of_bf16_are_the_experts_one_by_one(counts: list[int]) -> None:
    point = tiny_point(shape=MIXED)
    plain = Experts(blueprint(point), "layers.0")
    half = Experts(blueprint(tiny_point(shape=MIXED, precision="bf16")), "layers.0")
    tokens = torch.randn(16, 64, generator=torch.Generator().manual_seed(0))
    of_each = torch.tensor(counts)
    whole = plain(tokens, of_each)
    grouped = half(tokens.bfloat16(), of_each)
    assert grouped.dtype == torch.bfloat16
    torch.testing.assert_close(grouped.float(), whole, atol=2e-2 * whole.abs().max().item(), rtol=0)


def test_tokens_travel_to_experts_without_sorting_or_adding_gradients() -> None:
    """Torch's own backward of indexing is a sorting index_put, and of index_select an index_add."""
    tokens = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    order = torch.tensor([3, 0, 7, 1, 11, 5, 2, 9, 4, 6, 10, 8])
    inverse = inverse_of(order)
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as trace:
        copies = copy_for_experts(tokens, order, inverse)
        permute(copies, inverse, order).sum().backward()
    names = {event.key for event in trace.key_averages()}
    assert "aten::index_select" in names
    assert not {name for name in names if "put" in name or "index_add" in name}
    torch.testing.assert_close(tokens.grad, torch.full_like(tokens, 2.0))
