"""Every layout trains the same model: its losses are those of one process in plain torch."""

import dataclasses
import functools
from typing import Any

import pytest

from scaling.layout.axes import AXES, Axis
from scaling.layout.engines import clipping_refusals, engine_refusals
from scaling.layout.layout import Layout, refusals
from scaling.layout.shapes import ModelShape
from scaling.record.rank_files import RankResult
from scaling.study.point import Point
from tests.points import TINY, TINY_GPT, TINY_T5, tiny_point
from tests.train.conftest import Train
from tests.train.covering import Case, covering, product
from tests.train.reference import Curve, model_curve, reference_curve

pytestmark = pytest.mark.ranks

# Axes of the table that this array leaves to tests of their own, and values that need a GPU.
ELSEWHERE = {
    "micro_batch_size": "follows from the batch, dp and gradient accumulation",
    "fused_norm": "test_fused: Liger's kernels need a GPU",
    "fused_rope": "test_fused",
    "fused_mlp": "test_fused",
    "fused_cross_entropy": "test_fused",
    "compile": "test_compiled: a case takes a minute",
}
ON_A_GPU = {"fp8", "fp16", "fused_softmax", "flash1", "flash3", "flash4", "cudnn"}


def _values(axis: Axis) -> tuple[Any, ...]:
    listed = axis.values or ((2,) if axis.optional else (1, 2))
    known = tuple(value for value in listed if value not in ON_A_GPU)
    return (None, *known) if axis.optional else known


VALUES: dict[str, tuple[Any, ...]] = {
    "family": ("llama", "gpt", "t5"),
    "tied": (False, True),
    "dp": (1, 2, 4),
    "gradient_accumulation_steps": (1, 4),
    **{name: _values(axis) for name, axis in AXES.items() if name not in ELSEWHERE},
}
SHAPES = {
    ("llama", False): TINY,
    ("llama", True): dataclasses.replace(TINY, tied_embeddings=True),
    ("gpt", False): TINY_GPT,
    ("gpt", True): dataclasses.replace(TINY_GPT, tied_embeddings=True),
    ("t5", False): TINY_T5,
    ("t5", True): dataclasses.replace(TINY_T5, tied_embeddings=True),  # refused
}
RANKS = 4  # two of the degrees at a time
BATCH = 8  # sequences, tiny_point's


def point_of(case: Case) -> Point:
    layout = dict(case)
    return tiny_point(shape=SHAPES[layout.pop("family"), layout.pop("tied")], **layout)


def can_run(case: Case) -> bool:
    if case["tp"] * case["pp"] * case["cp"] * case["dp"] > RANKS:
        return False
    if case["dp"] * case["gradient_accumulation_steps"] > BATCH:
        return False
    if case["zero_shard_size"] == case["dp"]:  # which is the whole group
        return False
    point = point_of(case)
    refused = [*refusals(point.shape, point.layout), *engine_refusals(point.shape, point.layout)]
    return not refused


def name_of(case: Case) -> str:
    tied = "tied " if case["tied"] else ""
    return f"{case['family']} {tied}{point_of(case).layout.label} dp{case['dp']}"


PAIRWISE = covering([case for case in product(VALUES) if can_run(case)])

# What two values of each axis do not reach.
FARTHER: dict[str, tuple[ModelShape, dict[str, Any]]] = {
    "tp4 zero1": (TINY, {"tp": 4, "zero_stage": 1}),
    "cp4 zero2": (TINY, {"cp": 4, "zero_stage": 2}),
    "pp4 zero1": (TINY, {"pp": 4, "zero_stage": 1, "gradient_accumulation_steps": 8}),
    "pp2 tp2 dp2 zero1": (
        TINY,
        {
            "pp": 2,
            "tp": 2,
            "dp": 2,
            "sequence_parallel": True,
            "zero_stage": 1,
            "gradient_accumulation_steps": 2,
        },
    ),
    # weights beyond what ZeRO-3 keeps whole on every rank
    "dp2 zero3 of a large vocabulary": (
        dataclasses.replace(TINY, vocab_size=2048),
        {"dp": 2, "zero_stage": 3},
    ),
    # neighbours hold other weights: DeepSpeed's own groups would mix them
    "tp2 dp4 zero3 in twos": (TINY, {"tp": 2, "dp": 4, "zero_stage": 3, "zero_shard_size": 2}),
    "tp2 cp2 dp2 zero3": (TINY, {"tp": 2, "cp": 2, "dp": 2, "zero_stage": 3}),
    "no gate": (dataclasses.replace(TINY, gated_mlp=False), {"zero_stage": 1}),
    "a key for every head": (dataclasses.replace(TINY, num_kv_heads=8), {"zero_stage": 1}),
    "t5 pp4 zero1": (TINY_T5, {"pp": 4, "zero_stage": 1, "gradient_accumulation_steps": 4}),
    "t5 tp2 pp2 cp2 zero1": (
        TINY_T5,
        {
            "tp": 2,
            "pp": 2,
            "cp": 2,
            "sequence_parallel": True,
            "zero_stage": 1,
            "activation_checkpointing": "selective",
            "gradient_accumulation_steps": 2,
        },
    ),
    "t5 pp2 tp2 zero1, its encoder's last and its decoder's first layer on one stage": (
        dataclasses.replace(TINY_T5, num_layers=3),
        {"pp": 2, "tp": 2, "zero_stage": 1, "gradient_accumulation_steps": 2},
    ),
    "an odd number of weights, sharded": (
        dataclasses.replace(TINY, hidden_size=95),
        {"dp": 2, "zero_stage": 2},
    ),
    "three layers on two stages": (
        dataclasses.replace(TINY, num_layers=3),
        {"pp": 2, "zero_stage": 1, "gradient_accumulation_steps": 2},
    ),
    "a stage with the head alone": (
        dataclasses.replace(TINY, vocab_size=2048),
        {"pp": 2, "zero_stage": 1, "gradient_accumulation_steps": 2},
    ),
}


@functools.cache
def expected(shape: ModelShape, gradient_clipping: float = 0.0) -> Curve:
    point = dataclasses.replace(tiny_point(shape=shape), gradient_clipping=gradient_clipping)
    return reference_curve(point) if shape.family == "llama" else model_curve(point)


def keeps_no_norm(layout: Layout) -> bool:
    """Without ZeRO in fp32 DeepSpeed keeps no norm; in bf16 with tp it keeps a wrong one."""
    if layout.zero_stage > 0:
        return False
    return layout.precision == "fp32" or (layout.tp > 1 and layout.pp == 1)


def compare(train: Train, point: Point, *, loss: float, norm: float) -> dict[int, RankResult]:
    """Losses within `loss`, norms within a `norm` of themselves, on every rank."""
    curve = expected(point.shape, point.gradient_clipping)
    results = train(point)
    assert len(results) == point.layout.world_size
    for result in results.values():
        assert result.losses == pytest.approx(curve.losses, abs=loss)
        if result.grad_norms is not None:
            assert result.grad_norms == pytest.approx(curve.grad_norms, rel=norm)
    assert (results[0].grad_norms is None) == keeps_no_norm(point.layout)
    return results


@pytest.mark.parametrize("case", PAIRWISE, ids=name_of)
def test_a_layout_trains_what_one_process_trains(train: Train, case: Case) -> None:
    """In bf16 a weight keeps 8 bits, so it only stays near the curve of fp32.

    A t5 less near, on one rank as well: its gradients are smaller, and scores are not scaled.
    """
    if case["precision"] == "fp32":
        compare(train, point_of(case), loss=1e-5, norm=1e-4)
    elif case["family"] == "t5":
        compare(train, point_of(case), loss=2e-3, norm=0.1)
    else:
        compare(train, point_of(case), loss=1e-3, norm=0.025)


@pytest.mark.parametrize(("shape", "layout"), FARTHER.values(), ids=FARTHER)
def test_larger_degrees_and_other_shapes_train_the_same(
    train: Train, shape: ModelShape, layout: dict[str, Any]
) -> None:
    compare(train, tiny_point(shape=shape, **layout), loss=1e-5, norm=1e-4)


# So small that clipped gradients come near Adam's epsilon of 1e-8: above it Adam is blind to a norm
# that is wrong by a factor.
CLIPPING = 3e-6
STAGES = {"pp": 2, "gradient_accumulation_steps": 2}


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        (TINY, {"dp": 2}),
        (TINY, {"tp": 2, "sequence_parallel": True}),
        (TINY_GPT, {"tp": 2}),
        (TINY, {"tp": 2, "sequence_parallel": True, "zero_stage": 1}),
        (TINY_GPT, {"tp": 2, "zero_stage": 1, **STAGES}),
        (TINY, {"dp": 2, "cp": 2, "zero_stage": 2, "optimizer_offload": "cpu"}),
        (TINY, {"dp": 4, "zero_stage": 3, "zero_shard_size": 2}),
        (TINY, {"dp": 2, "precision": "bf16"}),
        (TINY_GPT, {"tp": 2, "precision": "bf16", **STAGES}),
    ],
    ids=lambda value: value.family if isinstance(value, ModelShape) else str(value),
)
def test_gradients_are_clipped_by_the_norm_of_all_of_them(
    train: Train, shape: ModelShape, layout: dict[str, Any]
) -> None:
    assert expected(shape, CLIPPING).losses[-1] != pytest.approx(
        expected(shape).losses[-1], abs=0.01
    )
    point = dataclasses.replace(tiny_point(shape=shape, **layout), gradient_clipping=CLIPPING)
    assert not list(clipping_refusals(point.layout, CLIPPING))
    if point.layout.precision == "bf16":
        compare(train, point, loss=1e-3, norm=0.025)
    else:
        compare(train, point, loss=1e-5, norm=1e-4)


@pytest.mark.parametrize(
    ("shape", "layout", "missed"),
    [
        (TINY, STAGES, "later stages"),
        (TINY_GPT, {"tp": 2, **STAGES}, "later stages"),
        (TINY, {"tp": 2, "precision": "bf16"}, "the other tp ranks"),
    ],
    ids=lambda value: value.family if isinstance(value, ModelShape) else str(value),
)
def test_gradients_that_deepspeed_would_clip_by_another_norm_are_refused(
    train: Train, shape: ModelShape, layout: dict[str, Any], missed: str
) -> None:
    point = dataclasses.replace(tiny_point(shape=shape, **layout), gradient_clipping=CLIPPING)
    (refused,) = clipping_refusals(point.layout, CLIPPING)
    assert f"leaves out weights of {missed}" in refused
    off = 3e-3 if point.layout.precision == "bf16" else 1e-4
    assert abs(train(point)[0].losses[-1] - expected(shape, CLIPPING).losses[-1]) > off


def test_zero0_in_bf16_takes_no_step_before_the_first(train: Train) -> None:
    """DeepSpeed's optimizer for it steps once while it is made, ZeRO-1's does not."""
    without = train(tiny_point(precision="bf16", dp=2))
    sharded = train(tiny_point(precision="bf16", dp=2, zero_stage=1))
    assert without[0].losses == pytest.approx(sharded[0].losses, abs=1e-6)


def test_warm_up_steps_are_trained_but_not_timed(train: Train) -> None:
    results = train(tiny_point(dp=2, warmup_steps=2, measured_steps=3))
    assert {len(result.step_times_s) for result in results.values()} == {3}
    assert {len(result.losses) for result in results.values()} == {5}
