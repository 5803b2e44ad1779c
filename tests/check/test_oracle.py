"""Memory of a rank: the engine's own bytes, and the predicted ones beside them."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from scaling.check import oracle
from scaling.check.oracle import (
    STEPS,
    RankMemory,
    memories_of,
    rank_memories,
    rehearsals,
    rehearsed_parts,
    stage_ranks,
    with_fewer_micro_batches,
)
from scaling.cli import memory as memory_verb
from scaling.cli.verbs import app
from scaling.errors import InputError
from scaling.layout.engines import ENGINES
from scaling.layout.layout import Layout
from scaling.layout.shapes import ModelShape
from scaling.predict.cost.memory import memory_of
from scaling.predict.read.points import points_of_layouts
from scaling.study.point import Point
from scaling.train.engines.torch import refusals
from tests.points import TINY, TINY_T5, tiny_point
from tests.shipped import CLUSTERS
from tests.train.conftest import skip_if_lacking

pytestmark = pytest.mark.slow

Memory = oracle.Rehearse
Walk = Callable[..., dict[str, Any]]  # a point and its steps: rank 0's memory
Told = Callable[..., list[RankMemory]]  # a point and its ranks

# Wide enough that what the formula leaves out, norms and tables of positions, is nothing.
WIDE = dataclasses.replace(
    TINY, num_layers=2, hidden_size=1024, num_heads=8, num_kv_heads=8, head_dim=128,
    ffn_hidden_size=2816, vocab_size=16384,
)  # fmt: skip
WIDE_T5 = dataclasses.replace(
    TINY_T5, hidden_size=1024, num_heads=16, num_kv_heads=16, head_dim=64, ffn_hidden_size=2816,
    vocab_size=16384,
)  # fmt: skip
KERNELS = {"fused_norm": True, "fused_rope": True, "fused_mlp": True}
LAYOUTS: list[tuple[ModelShape, dict[str, Any]]] = [
    (WIDE, {"zero_stage": 1, "dp": 8, "optimizer_precision": "bf16", "fused_norm": True}),
    (WIDE, {"zero_stage": 3, "dp": 8, "attention": "math"}),
    (WIDE, {"zero_stage": 1, "tp": 4, "sequence_parallel": True, "dp": 2, **KERNELS}),
    (WIDE, {"zero_stage": 1, "tp": 2, "pp": 2, "gradient_accumulation_steps": 3, **KERNELS}),
    (WIDE_T5, {"zero_stage": 2, "dp": 8, "attention": "math", "micro_batch_size": 2}),
    (WIDE, {"engine": "torch", "zero_stage": 1, "dp": 8, "gradient_accumulation_steps": 2}),
    (WIDE, {"engine": "torch", "zero_stage": 3, "dp": 8, "tp": 2, "sequence_parallel": True}),
]


def wide_point(shape: ModelShape, layout: dict[str, Any]) -> Point:
    asked = {"attention": "flash2", "precision": "bf16", "micro_batch_size": 1, "seq_length": 1024}
    return dataclasses.replace(
        tiny_point(shape=shape, **(asked | layout)), cluster="h100-80gb-dgx", gpu="h100-80gb"
    )


SCHEDULED = {
    schedule: wide_point(
        dataclasses.replace(TINY, num_layers=4),
        {"engine": "torch", "pp": 2, "zero_stage": 1, "gradient_accumulation_steps": 12}
        | {"pipeline_schedule": schedule},
    )
    for schedule in ("1f1b", "zbv")  # a stage of a rank, and two of them
}


@pytest.fixture(scope="module")
def memory() -> Iterator[Memory]:
    """One process for all of this file."""
    with rehearsals(tiny_point()) as memory:
        yield memory


@pytest.fixture
def told(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> Told:
    """Memory of a point's ranks, as `scaling memory` tells it."""
    monkeypatch.setattr(oracle, "rehearsals", lambda _: contextlib.nullcontext(memory))
    return lambda point, *ranks: next(rank_memories([(point, ranks)]))


@pytest.fixture
def walk(memory: Memory) -> Walk:
    """Memory of rank 0 of a point, walked as it is."""
    return lambda point, steps=STEPS: memory([(point, 0, steps)])[0]


@pytest.mark.parametrize(("shape", "layout"), LAYOUTS, ids=str)
def test_the_predicted_memory_is_the_engines_own(
    told: Told, shape: ModelShape, layout: dict[str, Any]
) -> None:
    point = wide_point(shape, layout)
    (group,) = points_of_layouts(
        [point.layout], [point.shape], CLUSTERS, models=[point.model], clusters=[point.cluster]
    ).groups
    memory = memory_of(group, group.features, {**group.start, "buffers_bytes": 0.0})
    ranks = told(point, *stage_ranks(point.layout).values())
    fullest = max(ranks, key=lambda one: one.peak_bytes)
    assert memory.total[0] == pytest.approx(fullest.peak_bytes, rel=0.02)
    assert memory.phase is not None
    at_peak = fullest.phases[str(memory.phase[0])]["peak_bytes"]
    assert at_peak == pytest.approx(fullest.peak_bytes, rel=0.02)
    assert sum(term[0] for term in memory.terms.values()) == pytest.approx(memory.total[0])


def test_each_pipeline_stage_is_told_once() -> None:
    assert stage_ranks(Layout(pp=4, tp=2, dp=3, seq_length=8)) == {
        "first": 0,
        "middle": 6,
        "last": 18,
    }
    assert stage_ranks(Layout(pp=2, dp=3, seq_length=8)) == {"first": 0, "last": 3}
    assert stage_ranks(Layout(dp=3, seq_length=8)) == {"first": 0}


def test_more_micro_batches_than_are_on_their_way_add_their_tokens_only(walk: Walk) -> None:
    """Ids and labels of two rounds more than `with_fewer_micro_batches` leaves, 8 bytes each."""
    point = wide_point(TINY, {"pp": 2, "zero_stage": 1, "gradient_accumulation_steps": 5})
    many, few = walk(point, 3), walk(with_fewer_micro_batches(point))
    tokens = 2 * 1024 * 2 * 8
    for phase in ("forward", "backward", "optimizer"):
        more = {name: size + tokens for name, size in few["phases"][phase].items()}
        assert many["phases"][phase] == more


@pytest.mark.parametrize("schedule", SCHEDULED)
def test_a_stage_of_torchs_pipelines_holds_buffers_for_every_micro_batch(
    told: Told, walk: Walk, schedule: str
) -> None:
    """The line for twelve equals a rehearsal of all twelve finds."""
    point = SCHEDULED[schedule]
    skip_if_lacking(point)
    (twelve,) = told(point, 0)
    for phase, sizes in walk(point)["phases"].items():
        assert twelve.phases[phase] == pytest.approx(sizes, abs=1024)
    buffers = [each["bytes"] for each in twelve.owners if "pipelining" in each["made_by"]]
    assert max(buffers) >= 12 * 1024 * point.shape.hidden_size * 2


# one group of shards that are held twice is another engine: it holds nothing twice
@pytest.mark.parametrize("shard", [None, 4])
def test_replicas_beyond_the_walked_ones_are_extrapolated_in_their_inverse(
    told: Told, walk: Walk, shard: int | None
) -> None:
    point = wide_point(WIDE, {"zero_stage": 3, "zero_shard_size": shard, "dp": 24})
    (found,) = told(point, 0)
    for phase, sizes in walk(with_fewer_micro_batches(point))["phases"].items():
        assert found.phases[phase]["peak_bytes"] == pytest.approx(sizes["peak_bytes"], rel=1e-4)


@pytest.mark.parametrize(
    ("shape", "layers", "layout"),
    [
        (TINY, (12, 0), {"zero_stage": 1, "dp": 4, "activation_checkpointing": "full"}),
        (TINY, (20, 0), {"engine": "torch", "zero_stage": 3, "dp": 4}),
        (TINY_T5, (11, 12), {"zero_stage": 1, "dp": 4, "attention": "math"}),
        (TINY_T5, (20, 21), {"engine": "torch", "zero_stage": 3, "dp": 4, "attention": "math"}),
    ],
    ids=str,
)
def test_two_shallow_models_tell_the_memory_of_a_deep_one(
    memory: Memory, shape: ModelShape, layers: tuple[int, int], layout: dict[str, Any]
) -> None:
    decoders, encoders = layers
    deep_shape = dataclasses.replace(shape, num_layers=decoders, num_encoder_layers=encoders)
    point = wide_point(deep_shape, layout)
    assert len(oracle._shallow_points(point)) == 2
    ((deep,),), ((told,),) = (
        memories_of(memory, [(point, [0])], shallow=each) for each in (False, True)
    )
    assert told.peak_bytes == pytest.approx(deep.peak_bytes, rel=2e-3)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"tp": 2, "activation_checkpointing": "full"},
        {"cp": 2, "gradient_accumulation_steps": 2, "attention": "math"},
        {"precision": "fp32"},
    ],
    ids=str,
)
def test_without_zero_any_number_of_replicas_needs_the_memory_of_two(
    memory: Memory, engine: str, more: dict[str, Any]
) -> None:
    points = [
        wide_point(TINY, {"engine": engine, "zero_stage": 0, "dp": dp, **more}) for dp in (2, 16)
    ]
    two, many = memory([(with_fewer_micro_batches(one), 0, STEPS) for one in points])
    assert two == many
    (((part, rank, weight),),) = [rehearsed_parts(points[1], 0, shallow=False)]
    assert (part.layout, rank, weight) == (points[0].layout, 0, 1.0)


def test_the_last_stage_of_fewer_replicas_is_rehearsed_for_that_of_many() -> None:
    point = wide_point(TINY, {"engine": "torch", "pp": 2, "zero_stage": 3, "dp": 64})
    last = stage_ranks(point.layout)["last"]
    parts = rehearsed_parts(point, last, shallow=False)
    assert [(part.layout.dp, rank) for part, rank, _ in parts] == [(8, 8), (16, 16)]


def test_shallow_models_have_the_same_head_of_a_pipeline() -> None:
    """Each stage of theirs has equally many layers less, or the point itself is rehearsed."""
    deep = wide_point(dataclasses.replace(TINY, num_layers=48), {"pp": 4, "dp": 2})
    (first, weight), (second, other) = oracle._shallow_points(deep)
    assert first.shape.num_layers < second.shape.num_layers < 48
    assert weight + other == 1
    line = weight * first.shape.num_layers + other * second.shape.num_layers
    assert line == 48
    few = wide_point(dataclasses.replace(TINY, num_layers=4), {"pp": 4, "dp": 2})
    assert oracle._shallow_points(few) == [(few, 1.0)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["quickstart", "--ranks", "second"], "--ranks: 'second' is no stage"),
        (["{}"], "P.json: is no point of this version"),
        (["3"], "P.json: is no point of this version"),
    ],
)
def test_what_cannot_be_told_is_one_sentence(tmp_path, arguments: list[str], said: str) -> None:
    path = tmp_path / "P.json"
    path.write_text(arguments[0])
    words = arguments if arguments[0] == "quickstart" else [str(path)]
    result = CliRunner().invoke(app, ["memory", *words])
    assert said in str(result.exception)


MIXTURE = dataclasses.replace(TINY, num_experts=4, experts_per_token=2, expert_ffn_hidden_size=48)
LEARNED = tiny_point(shape=MIXTURE, routing="learned")


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        (tiny_point(compile=True), "compile: true cannot be rehearsed"),
        (LEARNED, "routing: learned cannot be rehearsed"),
        (tiny_point(optimizer_offload="cpu", zero_stage=2), "offload: cpu cannot be counted"),
        (tiny_point(dp=2, pp=2, zero_stage=3), "ZeRO-2 and ZeRO-3 are incompatible"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_point_that_cannot_be_rehearsed_is_refused_at_once(
    tmp_path, point: Point, reason: str
) -> None:
    path = tmp_path / "P.json"
    path.write_text(point.to_json())
    result = CliRunner().invoke(app, ["memory", str(path)])
    assert isinstance(result.exception, InputError)
    assert reason in str(result.exception)


def test_what_a_study_leaves_out_is_said_beside_the_rest(monkeypatch, tmp_path) -> None:
    split = tiny_point(engine="torch", pp=2, pipeline_schedule="zbv")
    points = [LEARNED, LEARNED, split, tiny_point(shape=MIXTURE)]
    monkeypatch.setattr(memory_verb, "_points", lambda *_: points)
    monkeypatch.setattr(oracle, "rank_memories", lambda asked: iter([[RANK] for _ in asked]))
    monkeypatch.setattr(refusals, "version", lambda _: "2.11.0+cu130")
    result = CliRunner().invoke(app, ["memory", "study", "--json"])
    assert "2 of 4 points left out: routing: learned" in result.stderr
    assert "1 of 4 points left out: pipeline_schedule=zbv needs torch >= 2.13" in result.stderr
    assert len(result.stdout.splitlines()) == 1


RANK = RankMemory(rank=0, stage=0, peak_bytes=1, phases={}, owners=[])


@pytest.mark.parametrize("schedule", ["interleaved", "zero_bubble"])
def test_few_micro_batches_stay_whole_rounds_of_a_pipeline(schedule: str) -> None:
    layout = {"pp": 4, "pipeline_schedule": schedule, "virtual_stages": 2, "engine": "torch"}
    point = tiny_point(shape=TINY, **layout, gradient_accumulation_steps=32, global_batch_size=32)
    assert with_fewer_micro_batches(point).layout.gradient_accumulation_steps == 12
