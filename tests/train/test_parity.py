"""Every layout trains the same model: its losses are those of one process in plain torch."""

import dataclasses
import functools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from scaling.layout.axes import AXES, Axis
from scaling.layout.engines import ENGINES, engine_refusals
from scaling.layout.layout import Layout, refusals
from scaling.layout.shapes import ModelShape
from scaling.study.point import Point
from tests.conftest import GOLDEN
from tests.points import TINY, TINY_GPT, TINY_T5, tiny_point
from tests.train.conftest import Learn, Train
from tests.train.covering import Case, product
from tests.train.farther import FARTHER
from tests.train.reference import Curve, Curves, reference_curve

pytestmark = pytest.mark.ranks

# Axes of the table that this array leaves to tests of their own, and values that need a GPU or have
# tests of their own (fp8: test_fp8).
ELSEWHERE = {
    "ep": "test_experts: these models have none",
    "routing": "test_experts",
    "micro_batch_size": "follows from the batch, dp and gradient accumulation",
    "fused_norm": "test_fused: Liger's kernels need a GPU",
    "fused_rope": "test_fused",
    "fused_mlp": "test_fused",
    "fused_cross_entropy": "test_fused",
    "compile": "test_compiled: a case takes a minute",
    "cp_style": "FARTHER: a ring goes with one kernel of attention only",
    "fp8_scaling": "test_fp8",
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
# A weight that is wrong after the first step shows in the second loss, an optimizer's state in the
# third.
STEPS = 3
# These are chosen first: most of what is refused is refused by them alone.
DEGREES = ("tp", "pp", "cp", "dp", "sequence_parallel", "pipeline_schedule", "virtual_stages",
           "gradient_accumulation_steps", "engine")  # fmt: skip


def point_of(case: Case) -> Point:
    layout = dict(case)
    return learned_point(SHAPES[layout.pop("family"), layout.pop("tied")], layout)


def learned_point(shape: ModelShape, layout: dict[str, Any]) -> Point:
    """Two layers if no pipeline splits them: four would do the same for twice as long."""
    if layout.get("pp", 1) == 1 and shape.family != "t5":
        shape = dataclasses.replace(shape, num_layers=2)
    return tiny_point(shape=shape, measured_steps=STEPS, **layout)


def can_run(case: Case) -> bool:
    if case["zero_shard_size"] == case["dp"]:  # which is the whole group
        return False
    chosen = dict(case)
    shape = SHAPES[chosen.pop("family"), chosen.pop("tied")]
    micro_batch_size = BATCH // (case["dp"] * case["gradient_accumulation_steps"])
    layout = Layout(**chosen, micro_batch_size=micro_batch_size, seq_length=32)
    return not refused(shape, layout)


def refused(shape: ModelShape, layout: Layout) -> bool:
    return any(True for ask in (refusals, engine_refusals) for _ in ask(shape, layout))


def possible() -> Iterator[Case]:
    """Every layout of these values that can run: seconds of computing."""
    others = {name: values for name, values in VALUES.items() if name not in DEGREES}
    in_order = dict.fromkeys(VALUES)
    for degrees in product({name: VALUES[name] for name in DEGREES}):
        replica = degrees["tp"] * degrees["pp"] * degrees["cp"] * degrees["dp"]
        batch = degrees["dp"] * degrees["gradient_accumulation_steps"]
        if replica > RANKS or batch > BATCH:
            continue
        if refused(TINY, tiny_point(**degrees).layout):
            continue
        for chosen in product(others):
            case = in_order | degrees | chosen
            if can_run(case):
                yield case


def name_of(case: Case) -> str:
    tied = "tied " if case["tied"] else ""
    return f"{case['family']} {tied}{point_of(case).layout.label} dp{case['dp']}"


# A few of all possible cases. Every two values meet under each engine. Kept, since choosing
# them takes as long as all other collecting; test_covering holds them to the table of axes, and
# its --update-golden chooses anew.
PAIRWISE: list[Case] = json.loads((GOLDEN / "pairwise.json").read_text(encoding="utf-8"))


@functools.cache
def expected(shape: ModelShape, gradient_clipping: float = 0.0) -> Curve:
    point = dataclasses.replace(tiny_point(shape=shape), gradient_clipping=gradient_clipping)
    return reference_curve(point)


def bounds(point: Point) -> tuple[float, float]:
    """How far a loss may be off, and a gradient norm relative to it."""
    if point.layout.precision == "bf16":
        return (2e-3, 0.1) if point.shape.family == "t5" else (1e-3, 0.025)
    return 1e-5, 1e-4


def compare(point: Point, ranks: Curves) -> None:
    """Losses and gradient norms of every rank are those of one process.

    In bf16 a weight keeps 8 bits, so it only stays near the curve of fp32. A t5 less near, on one
    rank as well: its gradients are smaller, and scores are not scaled.
    """
    loss, norm = bounds(point)
    curve = expected(point.shape, point.gradient_clipping)
    assert len(ranks) == point.layout.world_size
    for rank in ranks:
        steps = point.warmup_steps + point.measured_steps
        assert rank["losses"] == pytest.approx(curve.losses[:steps], abs=loss)
        assert rank["grad_norms"] == pytest.approx(curve.grad_norms[:steps], rel=norm)


@pytest.mark.parametrize(
    "point", [point_of(case) for case in PAIRWISE], ids=[name_of(case) for case in PAIRWISE]
)
def test_a_layout_trains_what_one_process_trains(learn: Learn, point: Point) -> None:
    compare(point, learn(point))


@pytest.mark.parametrize(
    "point",
    [learned_point(shape, layout) for shape, layout in FARTHER.values()],
    ids=FARTHER,
)
def test_larger_degrees_and_other_shapes_train_the_same(learn: Learn, point: Point) -> None:
    compare(point, learn(point))


# So small that clipped gradients come near Adam's epsilon of 1e-8: above it Adam is blind to a norm
# that is wrong by a factor.
CLIPPING = 3e-6
CLIPPED_STEPS = 6  # until then clipped weights have learned another loss than free ones
STAGES = {"pp": 2, "gradient_accumulation_steps": 2}


def clipped(shape: ModelShape, **layout: Any) -> Point:
    point = tiny_point(shape=shape, measured_steps=CLIPPED_STEPS, **layout)
    return dataclasses.replace(point, gradient_clipping=CLIPPING)


def layout_name(value: object) -> str:
    assert isinstance(value, (Point, str))
    if isinstance(value, str):
        return value
    return f"{value.shape.family} {value.layout.label} dp{value.layout.dp}"


CLIPPED = [
    clipped(TINY, dp=2),
    clipped(TINY, tp=2, sequence_parallel=True),
    clipped(TINY_GPT, tp=2, zero_stage=1, **STAGES),
    clipped(TINY, dp=2, cp=2, zero_stage=2, optimizer_offload="cpu"),
    clipped(TINY, dp=4, zero_stage=3, zero_shard_size=2),
    clipped(TINY_GPT, tp=2, precision="bf16", **STAGES),
    clipped(TINY_GPT, engine="torch", tp=2, sequence_parallel=True, **STAGES),
    clipped(TINY, engine="torch", dp=2, cp=2, zero_stage=2, optimizer_offload="cpu"),
    clipped(
        dataclasses.replace(TINY, tied_embeddings=True),
        engine="torch",
        pipeline_schedule="zbv",
        tp=2,
        **STAGES,
    ),
]


@pytest.mark.parametrize("point", CLIPPED, ids=layout_name)
def test_gradients_are_clipped_by_the_norm_of_all_of_them(learn: Learn, point: Point) -> None:
    free, bounded = (
        expected(point.shape, norm).losses[CLIPPED_STEPS - 1] for norm in (0.0, CLIPPING)
    )
    assert bounded != pytest.approx(free, abs=0.01)
    assert not list(engine_refusals(point.shape, point.layout, CLIPPING))
    compare(point, learn(point))


@pytest.mark.parametrize(
    ("point", "missed"),
    [
        (clipped(TINY, **STAGES), "later stages"),
        (clipped(TINY_GPT, tp=2, **STAGES), "later stages"),
        (clipped(TINY, tp=2, precision="bf16"), "the other tp ranks"),
    ],
    ids=layout_name,
)
def test_gradients_that_deepspeed_would_clip_by_another_norm_are_refused(
    learn: Learn, point: Point, missed: str
) -> None:
    (refused,) = engine_refusals(point.shape, point.layout, CLIPPING)
    assert f"leaves out weights of {missed}" in refused
    off = 3e-3 if point.layout.precision == "bf16" else 1e-4
    losses = expected(point.shape, CLIPPING).losses[:CLIPPED_STEPS]
    assert abs(learn(point)[0]["losses"][-1] - losses[-1]) > off


@pytest.mark.parametrize(
    ("point", "sharded"),
    [
        tuple(
            tiny_point(precision="bf16", dp=2, zero_stage=stage, measured_steps=STEPS)
            for stage in (0, 1)
        )
    ],
    ids=layout_name,
)
def test_zero0_in_bf16_takes_no_step_before_the_first(
    learn: Learn, point: Point, sharded: Point
) -> None:
    """DeepSpeed's optimizer for it steps once while it is made, ZeRO-1's does not."""
    ranks = learn(point)
    assert ranks[0]["losses"] == pytest.approx(learn(sharded)[0]["losses"], abs=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_point_trains_the_same_and_times_no_warm_up(train: Train, engine: str) -> None:
    point = tiny_point(engine=engine, dp=2, zero_stage=1, warmup_steps=2, measured_steps=3)
    for result in train(point).values():
        assert len(result.step_times_s) == 3
        assert result.losses == pytest.approx(expected(TINY).losses[:5], abs=1e-5)
        assert result.grad_norms == pytest.approx(expected(TINY).grad_norms[:5], rel=1e-4)
