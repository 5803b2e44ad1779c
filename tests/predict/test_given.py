"""The open columns of a row are derived, assumed or noted."""

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from scaling.cluster.hardware import GPUS
from scaling.layout.axes import AXES
from scaling.layout.layout import Layout
from scaling.layout.shapes import ModelShape
from scaling.predict.cost.model import predict
from scaling.predict.cost.prediction_tables import prediction_table
from scaling.predict.read.clusters import site_clusters
from scaling.predict.read.given import SHAPE, SIZES
from scaling.predict.read.observed import observed_of
from scaling.predict.read.points import points_of, points_of_layouts
from scaling.predict.read.stacks import STACKS, stack_of
from tests.predict.conftest import as_table, checked
from tests.shipped import MODELS


def test_unstated_precision_is_fp16_on_a_gpu_without_bf16() -> None:
    points = checked({"cluster": "v100-32gb"}, {"cluster": "a100-80gb"})
    assert [group.features.bf16.tolist() for group in points.groups] == [[False], [True]]
    assert points.note.tolist() == [None] * 2
    assert any("precision is not given in 2 rows" in text for text in points.assumptions)


def test_measured_rows_without_software_are_ours_only_if_a_column_says_so() -> None:
    row = {"dp": 8, "framework": None, "outcome": "ok", "step_time_s": 9.0}
    (theirs,) = checked(row).groups
    assert theirs.framework == "unnamed"
    (ours,) = checked({**row, "point_id": "p"}).groups
    assert ours.framework == "scaling"
    (ours,) = checked({"dp": 8, "framework": None, "engine": "torch"}).groups
    assert ours.framework == "scaling torch"


def test_dp_and_accumulation_follow_from_size_and_batch() -> None:
    points = checked({"world_size": 16, "tp": 2, "pp": 2, "global_batch_size": 64})
    f = points.groups[0].features
    assert f.dp.tolist() == [4]
    assert f.accumulation.tolist() == [16]  # 64 sequences / (4 replicas x micro-batches of 1)
    assert f.kv_width.tolist() == [4096]
    assert any("micro_batch_size" in sentence for sentence in points.assumptions)


CORE = {"framework": "Megatron-Core", "cluster": "h100-80gb-dgx"}
OURS = {"framework": "scaling", "cluster": "h100-80gb-dgx", "precision": "fp8"}


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"dp": 4, "global_batch_size": 64, "gradient_accumulation_steps": 2},
            {"micro_batch_size": 8}),
        ({**CORE, "dp": 8}, {"recomputes": True, "selective": False}),
        ({**CORE, "activation_checkpointing": "selective"}, {"recomputes": False, "selective": 1}),
        ({**CORE, "activation_checkpointing": "none"}, {"recomputes": False, "selective": False}),
        ({**CORE, "tp": 4, "pp": 2},
            {"zero_stage": 1, "sequence_parallel": True, "virtual": 1, "ring": True}),
        ({**CORE, "zero_stage": 0}, {"zero_stage": 0, "sequence_parallel": False}),
        ({"tp": 4, "pp": 2}, {"zero_stage": 0, "sequence_parallel": False, "virtual": 1}),
        ({**CORE, "dp": 64, "fsdp": 16}, {"zero_stage": 3, "shard": 16}),
        # other software of today fuses its norms, and a compiler all of them
        ({"fused_norm": None}, {"fused_norm": True}),
        ({"fused_norm": False}, {"fused_norm": False}),
        ({"fused_norm": False, "compile": True}, {"fused_norm": True}),
        # eager casts of fp8 are kept for backward, compiled ones are not
        ({**OURS, "compile": False}, {"cast_bytes": 20, "saved_bytes": 2}),
        ({**OURS, "compile": True}, {"cast_bytes": 10, "saved_bytes": 0}),
        ({"gated_mlp": None, "ffn_hidden_size": 4 * 4096}, {"mlp_inputs": 1}),
        ({"gated_mlp": None, "ffn_hidden_size": 14336}, {"mlp_inputs": 2}),
        # a cluster of another site is the GPU that the table names
        ({"cluster": "juwels", "gpu": "a100-40gb", "dp": 4}, {"gpus_per_node": 8}),
    ],
)  # fmt: skip
def test_an_open_column_is_derived_or_what_the_software_does(
    row: dict[str, Any], found: dict[str, Any]
) -> None:
    (group,) = checked(row).groups
    assert {name: getattr(group.features, name)[0] for name in found} == found
    assert group.cluster.gpu == row.get("gpu", group.cluster.gpu)


def test_layouts_in_memory_are_the_same_points_as_their_table() -> None:
    shapes = [MODELS[name] for name in ("llama2_7b", "mt5_base", "gpt2", "deepseek_v3")]
    layouts = [
        Layout(tp=2, pp=2, dp=4, zero_stage=1, sequence_parallel=True, seq_length=1024),
        Layout(dp=8, zero_stage=3, zero_shard_size=4, attention="math", seq_length=512),
        Layout(cp=2, dp=2, optimizer_offload="cpu", zero_stage=2, precision="fp16", compile=True,
               micro_batch_size=4, gradient_accumulation_steps=3, seq_length=1024),
        Layout(tp=2, dp=32, ep=32, pp=4, zero_stage=1, gradient_accumulation_steps=8,
               fused_norm=True, seq_length=4096),
    ]  # fmt: skip
    clusters = ["h100-80gb-efa", "a100-80gb", "v100-32gb", "h100-80gb"]
    direct = points_of_layouts(
        layouts, shapes, site_clusters(), models=[*"abcd"], clusters=clusters
    )
    records = [
        {**dataclasses.asdict(shape), **dataclasses.asdict(layout), "model": name, "cluster": at}
        for shape, layout, name, at in zip(shapes, layouts, "abcd", clusters, strict=True)
    ]
    read = points_of(as_table(pa.Table.from_pylist(records)))
    one, other = (prediction_table(points, predict(points)) for points in (direct, read))
    assert one.equals(other)


def test_a_column_of_every_axis_size_and_shape_reaches_the_formulas() -> None:
    (group,) = checked({"dp": 8}).groups
    assert {*AXES, *SIZES, *SHAPE} <= set(group.features.columns)
    assert not group.features.fused_rope.any()
    assert {"num_layers", "num_experts", "query_key_norm"} <= set(SHAPE)


def test_a_named_model_needs_no_shape_columns() -> None:
    shape = ModelShape(
        num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=2, head_dim=16,
        ffn_hidden_size=128, vocab_size=100,
    )  # fmt: skip
    row = {"model": "tiny", "cluster": "v100-32gb", "seq_length": 32, "precision": "fp16"}
    rows = [row, {**row, "model": "tinny"}]
    points = points_of(as_table(pa.Table.from_pylist(rows)), models={"tiny": shape})
    assert points.groups[0].features.kv_width.tolist() == [32]
    assert points.note.tolist() == [None, "num_layers is not given"]


@pytest.mark.parametrize("axis", ["tp", "pp", "dp"])
def test_empty_cells_of_degrees_are_one_and_dp_takes_the_rest(axis: str) -> None:
    degrees = {"tp": 2, "pp": 4, "dp": 8}
    row = {name: size for name, size in degrees.items() if name != axis}
    points = checked({"world_size": 64, **row})
    if axis == "dp":
        assert points.groups[0].features.dp.tolist() == [8]
    else:
        assert points.note.tolist() == ["world_size is not tp x pp x cp x dp"]


def test_outcomes_say_what_is_a_time_and_what_is_not() -> None:
    rows = {
        "outcome": ["ok", "oom", "oom_or_crash", None, "timeout", None],
        "step_time_s": [1.0, None, None, 2.0, None, None],
        "extended_step_time_s": [None, None, None, None, None, 3.0],
    }
    seen = observed_of(as_table(pa.table(rows)))
    assert seen.timed.tolist() == [True, False, False, True, False, True]
    assert seen.out_of_memory.tolist() == [False, True, False, False, False, False]
    assert seen.ambiguous.tolist() == [False, False, True, False, False, False]
    assert np.isnan(seen.peak_memory_bytes).all()


H100 = {"cluster": "h100-80gb-dgx", "tp": 4, "pp": 2, "dp": 8, "micro_batch_size": 1}
H100["gradient_accumulation_steps"] = 32


def test_unknown_software_is_slower_than_what_nvidia_tuned() -> None:
    names = ("NeMo 25.02", "trainer of tomorrow", "")
    tuned, unknown, unnamed = predict(
        checked(*({**H100, "framework": name, "source": "a blog"} for name in names))
    ).step_time_s
    assert unknown == unnamed
    assert tuned < unknown < 2 * tuned


def test_intervals_of_unknown_software_are_wider_by_what_all_layouts_share() -> None:
    names = ("NeMo 25.02", "trainer of tomorrow")
    found = predict(checked(*({**H100, "framework": name} for name in names)))
    known, unknown = np.log(found.high / found.low)
    assert unknown > 1.2 * known
    assert found.common_sigma[1] > 1.5 * found.common_sigma[0]


def test_unknown_software_may_fit_a_little_above_the_capacity() -> None:
    layouts = [
        {**H100, "framework": name, "tp": 1, "micro_batch_size": micro, "dp": 32}
        | {"activation_checkpointing": "none"}
        for name in ("NeMo 25.02", "trainer of tomorrow")
        for micro in range(1, 40)
    ]
    found = predict(checked(*layouts))
    used = (found.need_bytes / found.capacity_bytes).reshape(2, -1)
    assert (found.fits.reshape(2, -1) == (used <= 1)).all()
    above = (used > 1.1) & (used < 1.4)
    chance = found.fits_chance.reshape(2, -1)
    assert chance[1][above[1]].min() > 0.02


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("NVIDIA NeMo 2.0", "Megatron-Core"),
        ("nemo-framework v25.04", "Megatron-Core"),
        ("megatron_core r0.12", "Megatron-Core"),
        ("ROCm Megatron-LM", "Megatron-Core"),
        ("NeMo Automodel 0.2", "Automodel"),
        ("AI-Hypercomputer/maxtext", ""),
        ("TorchTitan nightly", "torchtitan"),
        ("NeMo (MLPerf v5.1)", "Megatron-Core"),
        ("Megatron-Bridge", "Megatron-Core"),
        ("scaling torch nights", ""),
        ("nemotron trainer", ""),
    ],
)
def test_software_is_known_by_the_words_in_its_name(spelled: str, name: str) -> None:
    assert stack_of(spelled, GPUS["h100-80gb"]).name == name
    assert len({(s.name, s.generations) for s in STACKS}) == len(STACKS)
