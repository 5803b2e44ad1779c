"""The predictor's facts about this project's engine are what the engine asks DeepSpeed for."""

import dataclasses
import functools
import json
import math

import pytest

from benchmarks.counted_memory import judged
from scaling.layout.layout import Layout
from scaling.layout.partition import layers_of_stages
from scaling.predict.cost.communication import traffic_of
from scaling.predict.cost.memory import memory_of
from scaling.predict.cost.model import MEMORY_SIGMA_BOUNDED
from scaling.predict.cost.stages import stages_of
from scaling.predict.cost.step import step_of
from scaling.predict.read.parameters import defaults_for
from scaling.predict.read.points import points_of_layouts
from scaling.predict.read.stacks import OWN_FRAMEWORK
from scaling.train.engines.deepspeed.config import deepspeed_config
from tests.conftest import PROJECT
from tests.predict.conftest import checked
from tests.shipped import CLUSTERS, MODELS

LLAMA_7B = MODELS["llama2_7b"]


def asked(**layout):
    return deepspeed_config(LLAMA_7B, Layout(seq_length=4096, **layout))


@pytest.mark.parametrize(
    "layout", [{"zero_stage": 0}, {"zero_stage": 1}, {"zero_stage": 2}, {"pp": 2, "zero_stage": 1}]
)
def test_gradient_traffic_overlaps_with_zero_and_without_a_pipeline(layout):
    row = {**dataclasses.asdict(LLAMA_7B), "dp": 8, **layout, "framework": OWN_FRAMEWORK}
    (group,) = checked(row).groups
    p = defaults_for(group.stack.defaults)
    half, whole = (
        step_of(group, group.features, {**p, "dp_exposed": share}, 0.0).terms["dp_comm_s"]
        for share in (0.5, 1.0)
    )
    overlaps = "overlap_comm" in asked(dp=8, **layout)["zero_optimization"]
    assert (half < whole) == overlaps


@pytest.mark.parametrize("stage", [1, 2])
def test_gradients_are_all_reduced_where_a_scatter_would_do(stage):
    config = asked(dp=8, zero_stage=stage)["zero_optimization"]
    assert config.get("use_multi_rank_bucket_allreduce", True)
    row = {**dataclasses.asdict(LLAMA_7B), "dp": 8, "gradient_accumulation_steps": 1}

    def seconds(**said):
        (group,) = checked({**row, **said}).groups
        f, p = group.features, defaults_for({})
        moved = traffic_of(group, f, p, stages_of(f, group.stack))
        return float((moved.gradients + moved.gathering)[0])

    whole, sharded = (seconds(framework=OWN_FRAMEWORK, zero_stage=z) for z in (0, stage))
    scattered = seconds(framework=f"{OWN_FRAMEWORK} torch", zero_stage=stage)
    # both passes of an all-reduce, and weights are gathered; elsewhere one pass of each
    assert sharded == pytest.approx(1.5 * whole, rel=0.01)
    assert scattered == pytest.approx(whole, rel=0.01)


@pytest.mark.parametrize("model", ["llama2_7b", "llama_13b_v128k", "llama_30b_v128k", "gpt_8b"])
@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_stages_have_the_layers_that_the_engine_deals(model, checkpointing):
    shape, sizes = MODELS[model], [(pp, length) for pp in (2, 3, 4, 8) for length in (2048, 32768)]
    layouts = [
        Layout(pp=pp, seq_length=length, activation_checkpointing=checkpointing)
        for pp, length in sizes
    ]
    asked, clusters = [shape] * len(sizes), ["h100-80gb-dgx"] * len(sizes)
    (group,) = points_of_layouts(
        layouts, asked, CLUSTERS, models=[model] * len(sizes), clusters=clusters
    ).groups
    found = stages_of(group.features, group.stack)
    dealt = [
        layers_of_stages(shape, pp=pp, seq_length=n, activation_checkpointing=checkpointing)
        for pp, n in sizes
    ]
    assert found.first.tolist() == [one[0] for one in dealt]
    assert found.last.tolist() == [one[-1] for one in dealt]
    assert found.middle.tolist() == [max(one[:-1]) for one in dealt]


COUNTED = [
    ("llama2_7b", {"zero_stage": 1, "seq_length": 4096}, 148.25, "optimizer"),
    ("llama2_7b", {"zero_stage": 0, "seq_length": 4096}, 134.8, "build"),
    ("llama2_7b", {"zero_stage": 0, "seq_length": 4096, "micro_batch_size": 2,
        "activation_checkpointing": "selective"}, 137.9, "backward"),
    ("llama_13b_v128k", {"zero_stage": 1, "dp": 64, "gradient_accumulation_steps": 2}, 79.59,
        "backward"),
    ("llama_13b_v128k", {"zero_stage": 1, "dp": 64}, 56.0, "build"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "layout", "gigabytes", "phase"), COUNTED, ids=str)
def test_a_whole_model_takes_what_its_engine_was_counted_to_take(model, layout, gigabytes, phase):
    asked = Layout(**({"seq_length": 2048} | layout))
    (group,) = points_of_layouts(
        [asked], [MODELS[model]], CLUSTERS, models=[model], clusters=["h100-80gb-dgx"]
    ).groups
    memory = memory_of(group, group.features, {**group.start, "buffers_bytes": 0.0})
    assert memory.total[0] / 1e9 == pytest.approx(gigabytes, rel=0.005)
    assert memory.phase[0] == phase


RESULTS = PROJECT / "benchmarks" / "results"


@functools.cache
def errors_of(file: str) -> dict[str, dict[str, float]]:
    """By where a layout was drawn: relative errors of the fullest of its ranks, by point."""
    rows = [json.loads(line) for line in (RESULTS / file).read_text().splitlines()]
    errors: dict[str, dict[str, float]] = {"random": {}, "studies": {}}
    for row, error in zip(rows, judged(rows), strict=True):
        origin = "random" if row["point"]["study"] == "random" else "studies"
        errors[origin][row["point_id"]] = error
    assert sum(map(len, errors.values())) == len({row["point_id"] for row in rows})
    return errors


@pytest.mark.parametrize("file", ["memory.jsonl", "memory_torch.jsonl", "memory_experts.jsonl"])
def test_all_layouts_that_were_counted_are_predicted_within_two_percent(file):
    """Layouts of the studies; models cut to a share of their layers."""
    errors = errors_of(file)["studies"]
    assert {name: error for name, error in errors.items() if abs(error) > 0.02} == {}


def is_bounded(name: str) -> bool:
    """Whether a layout's schedule is bounded, not counted."""
    return any(one in name for one in ("interleaved", "zero_bubble", "zbv", "dualpipev"))


def test_the_bound_of_other_schedules_is_seldom_low_and_within_its_sigma():
    drawn = errors_of("memory.jsonl")["random"]
    errors = [math.log1p(error) for name, error in drawn.items() if is_bounded(name)]
    assert len(errors) > 40
    assert min(errors) > -2 * MEMORY_SIGMA_BOUNDED
    within = sum(abs(error) <= MEMORY_SIGMA_BOUNDED for error in errors)
    assert within >= 0.8 * len(errors)


def test_most_layouts_drawn_at_random_are_predicted_within_two_percent():
    """docs/gpu.md names those that are not."""
    drawn = errors_of("memory.jsonl")["random"]
    sizes = sorted(abs(error) for name, error in drawn.items() if not is_bounded(name))
    assert len(sizes) > 100
    assert sum(size <= 0.02 for size in sizes) >= 0.8 * len(sizes)
    assert sizes[len(sizes) // 2] < 0.005


EASILY_MISCOUNTED = [  # a layout that was drawn, and what is easily left out of its count
    "llama-pp4-cp8-zero3-shard2-mbs4-flash3-bf16-torch",  # weights that no backward lets go
    "llama-pp8-zero3-opt-bf16-mbs1-ckpt-full-flash2-fused-norm",  # a head that its loss lets go
    "gpt-tp8-zero3-mbs1-ckpt-full-flash2-bf16-torch",  # learned positions
    "llama-pp2-zero1-mbs1-flash4-bf16-torch",  # one output of a pipeline
    "gpt-pp8-zero0-mbs1-ckpt-selective-flash2-bf16-5b3b6d13",  # the norm of a pipeline in bf16
    "t5-zero3-mbs1-math-bf16-41ed8159",  # ZeRO-3's groups of weights
    "t5-cp4-zero2-mbs1-ckpt-selective-math",  # position tables and their gradients
    "llama-zero1-mbs1-ckpt-selective-flash2-fp8-torch",  # a tied matrix
    "llama-zero3-mbs1-ckpt-full-flash2-fused-cross-entropy-bf16-1964ce0d",  # a fused loss
    "gpt-zero1-mbs2-ckpt-full-flash2-bf16-7a0f07ee",  # gradients in ZeRO-1's buckets
    "llama-cp2-zero3-mbs1-flash2-fp8-5c9541b3",  # weights that are let go before the last bucket
]


@pytest.mark.parametrize("name", EASILY_MISCOUNTED)
def test_what_is_easily_left_out_of_a_layouts_memory_is_counted(name):
    errors = errors_of("memory.jsonl")["random"]
    (error,) = (error for point_id, error in errors.items() if point_id.startswith(name))
    assert abs(error) < 0.02
