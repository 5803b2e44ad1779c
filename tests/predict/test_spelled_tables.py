"""Tables in the words of other people and tools are the points that they mean."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scaling.errors import InputError
from scaling.foreign.columns import Columns
from scaling.foreign.reading import read_table
from scaling.layout.layout import Layout
from scaling.layout.shapes import ModelShape
from scaling.predict.cost.model import predict
from scaling.predict.cost.tables import prediction_table
from scaling.predict.fit.validation import trial
from scaling.predict.read.clusters import site_clusters
from scaling.predict.read.inputs import inputs_of_layouts
from scaling.predict.read.observed import observed_of
from scaling.predict.read.points import points_from, points_of
from tests.predict.conftest import SHAPE, checked
from tests.predict.reference import write_csv
from tests.shipped import MODELS


def test_a_csv_and_a_parquet_file_of_the_same_rows_are_the_same_points(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        ",".join(SHAPE) + ",tp,dp\n" + ",".join(str(v) for v in SHAPE.values()) + ",2,4\n"
    )
    pq.write_table(pa.Table.from_pylist([{**SHAPE, "tp": 2, "dp": 4}]), tmp_path / "a.parquet")
    one, other = (
        points_of(Columns(read_table(tmp_path / name), name)) for name in ("a.csv", "a.parquet")
    )
    assert one.world_size.tolist() == other.world_size.tolist() == [8]
    assert one.groups[0].features.mlp_inputs.tolist() == [2]
    assert other.groups[0].features.mlp_inputs.tolist() == [2]


@pytest.mark.parametrize(
    ("column", "spelled", "meant"),
    [
        ("precision", "BF16", "bf16"),
        ("precision", "bf16-mixed", "bf16"),
        ("precision", "FP8_MX", "mxfp8"),
        ("attention", "flash_attention_2", "flash2"),
        ("activation_checkpointing", "Full", "full"),
    ],
)
def test_words_of_other_tools_mean_ours(column: str, spelled: str, meant: str) -> None:
    row = {"cluster": "b200-180gb", "dp": 8}
    theirs, ours = (checked({**row, column: word}) for word in (spelled, meant))
    assert theirs.note.tolist() == ours.note.tolist() == [None]
    assert predict(theirs).step_time_s == predict(ours).step_time_s
    # another word is said, another case goes without saying
    said = any(f"{spelled} is read as {meant}" in text for text in theirs.assumptions)
    assert said == (spelled.lower() != meant)


ROW = {
    "source": "somewhere", "model": "LLAMA3_70B", "num_layers": 80, "hidden_size": 8192,
    "num_heads": 64, "num_kv_heads": 8, "ffn_hidden_size": 28672, "gated_mlp": True,
    "tied_embeddings": False, "vocab_size": 128256, "seq_length": 8192, "cluster": "h100-80gb",
    "gpus_per_node": 8, "world_size": 64, "tp": 4, "pp": 8, "cp": 1, "dp": 2, "zero_stage": 1,
    "sequence_parallel": True, "micro_batch_size": 1, "global_batch_size": 256,
    "activation_checkpointing": "none", "attention": "flash2", "precision": "fp8",
    "outcome": "ok", "step_time_s": 20.5,
}  # fmt: skip
TOKENS = 256 * 8192


@pytest.mark.parametrize(
    ("gone", "instead"),
    [
        ("step_time_s", {"Step time (ms)": 20500}),
        ("step_time_s", {"step_time": "20.5 s"}),
        ("step_time_s", {"Step time (ms)": "20500 ± 30"}),
        ("step_time_s", {"Step time (ms)": "20 500"}),
        ("step_time_s", {"Step time (ms)": "20.5 s"}),
        ("step_time_s", {"tokens/sec/GPU": f"{TOKENS / 20.5 / 64:,.3f}"}),
        ("step_time_s", {"Tokens per second": TOKENS / 20.5}),
        ("step_time_s outcome", {"samples_per_second": 256 / 20.5, "status": "Success"}),
        ("global_batch_size", {"Global batch (tokens)": TOKENS}),
        ("global_batch_size", {"GBS": TOKENS}),
        ("global_batch_size", {"GlobalBatchSize": 256}),
        ("global_batch_size", {"Tokens/Batch": "2M"}),  # 2^21 are whole sequences
        ("global_batch_size", {"Batch size/DP": 128}),
        ("global_batch_size micro_batch_size", {"LBS": 128}),  # 1 at a time through the pipeline
        ("micro_batch_size", {"per_device_train_batch_size": 1}),
        ("step_time_s", {"Throughput (T/s/GPU)": TOKENS / 20.5 / 64}),
        ("step_time_s", {"Throughput (S/s)": 256 / 20.5}),
        ("global_batch_size", {"grad_accum_steps": 128}),
        ("micro_batch_size", {"num_microbatches": 128}),
        ("dp", {}),
        ("world_size dp", {"nodes": 8}),
        ("world_size dp gpus_per_node", {"#Nodes": 8}),
        ("world_size", {"Num GPUs": 64}),
        ("tp pp cp", {"TP": 4, "pipeline_parallelism": 8, "context parallel size": "-"}),
        ("tp pp", {"model-parallel-size": 4, "pipe-parallel-size": 8}),
        ("seq_length", {"Seq Len": "8k"}),
        ("cluster", {"GPU": "8x H100"}),
        ("cluster", {"System": "Eos", "Accelerator": "NVIDIA H100"}),
        ("cluster", {"GPU": None, "System": "DGX-H100"}),  # of another section of the page
        ("cluster", {"gpu_name": "NVIDIA H100 80GB HBM3"}),
        ("cluster", {"hardware": "DGX-H100 SXM"}),
        ("cluster", {"cluster": "eos", "gpu_name": "NVIDIA H100 80GB HBM3"}),
        ("", {"ep": 0, "attention_kind": "GQA"}),
        ("precision", {"dtype": "bf16_with_fp8_current_scaling_mixed"}),
        ("zero_stage", {"ZeRO": "ZeRO-1"}),
        ("zero_stage", {"ZeRO": "stage 1"}),
        ("cluster", {"cluster": "H100-80GB"}),
        ("activation_checkpointing", {"recompute": "None"}),
        ("sequence_parallel", {"Sequence Parallel": "On"}),
        ("activation_checkpointing", {"recompute": "disabled"}),
        ("num_layers hidden_size num_heads num_kv_heads ffn_hidden_size vocab_size", {}),
        ("num_heads num_kv_heads vocab_size gated_mlp tied_embeddings", {}),
    ],
)
def test_a_table_in_other_words_is_the_same_rows(
    tmp_path: Path, gone: str, instead: dict[str, Any]
) -> None:
    tables = []
    changed = {name: cell for name, cell in ROW.items() if name not in gone.split()} | instead
    for row in (ROW, changed):
        columns = Columns(read_table(write_csv(tmp_path / "t.csv", [row])), "t.csv")
        points = points_of(columns, models=MODELS)
        tables.append((predict(points).step_time_s[0], observed_of(columns).step_time_s[0]))
    assert tables[1] == pytest.approx(tables[0], rel=1e-5)


def test_without_a_pipeline_a_local_batch_is_one_micro_batch_unless_it_is_accumulated() -> None:
    rows = [{"dp": 4, "local_batch_size": 8},
            {"dp": 4, "local_batch_size": 8, "global_batch_size": 64},
            {"dp": 4, "local_batch_size": 8, "gradient_accumulation_steps": 3},
            {"dp": 4, "local_batch_size": 8, "micro_batch_size": 2}]  # fmt: skip
    (group,) = (points := checked(*rows)).groups
    assert group.features.micro_batch_size.tolist() == [8, 8, 8, 2]
    assert points.global_batch_size.tolist() == [32, 64, 96, 32]
    assert any("micro_batch_size is not given in 3 rows" in text for text in points.assumptions)


def test_an_unstated_precision_is_fp16_on_a_gpu_without_bf16() -> None:
    points = checked({"cluster": "v100-32gb"}, {"cluster": "a100-80gb"}, {"cluster": "a100-80gb"})
    assert [group.features.bf16.tolist() for group in points.groups] == [[False], [True, True]]
    assert points.note.tolist() == [None] * 3
    assert "precision is not given in 1 rows: taken as fp16" in points.assumptions


@pytest.mark.parametrize(("others", "stage"), [("0", 3), ("8", 0)])
def test_one_of_fsdp_is_a_switch_beside_zeros_and_a_rank_beside_numbers_of_ranks(
    tmp_path: Path, others: str, stage: int
) -> None:
    head, cells = ",".join(SHAPE), ",".join(map(str, SHAPE.values()))
    (tmp_path / "t.csv").write_text(f"{head},dp,FSDP\n{cells},8,1\n{cells},8,{others}\n")
    columns = Columns(read_table(tmp_path / "t.csv"), "t.csv")
    for some in (columns, columns.filter(np.array([True, False]))):
        assert points_of(some).groups[0].features.zero_stage[0] == stage


def test_software_that_recomputes_modules_does_so_where_a_row_names_some() -> None:
    row = {"dp": 8, "cluster": "h100-80gb", "framework": "Megatron-Core"}
    words = ("norm, act", "mlp", None, "selective", "core_attn")
    f = checked(*({**row, "activation_checkpointing": word} for word in words)).groups[0].features
    assert f.recomputes.tolist() == [True, True, True, False, False]
    assert f.selective.tolist() == [False, False, False, True, True]


def test_no_chunks_is_one_chunk_and_the_row_counts() -> None:
    tables = [pa.Table.from_pylist([{**ROW, "virtual_stages": chunks}]) for chunks in (0, 1)]
    steps = [trial(table, "t").overall.step_time for table in tables]
    assert steps[0] == steps[1]
    assert steps[0]["rows"] == 1


def test_a_row_of_others_that_names_no_software_is_not_taken_for_ours() -> None:
    row = {name: cell for name, cell in ROW.items() if name != "source"}
    (theirs,) = points_of(Columns(pa.Table.from_pylist([row]), "t")).groups
    assert theirs.framework == "unnamed"
    (ours,) = points_of(Columns(pa.Table.from_pylist([{**row, "point_id": "p"}]), "t")).groups
    assert ours.framework == "scaling"


def test_what_ran_out_of_memory_may_stand_where_a_time_would() -> None:
    rows = [{**ROW, "outcome": None, "step_time_s": cell} for cell in ("20.5", "OOM", None)]
    observed = observed_of(Columns(pa.Table.from_pylist(rows), "t"))
    assert observed.ran.tolist() == [True, False, False]
    assert observed.out_of_memory.tolist() == [False, True, False]


def test_software_is_known_by_its_name_in_any_case() -> None:
    usual, small = (
        predict(checked({"tp": 2, "dp": 4, "framework": name})).step_time_s
        for name in ("Megatron-Core r0.9", "megatron-core r0.9")
    )
    assert usual == small
    assert usual != predict(checked({"tp": 2, "dp": 4, "framework": "unheard of"})).step_time_s


def test_what_is_missing_follows_from_what_is_there() -> None:
    points = checked({"world_size": 16, "tp": 2, "pp": 2, "global_batch_size": 64})
    f = points.groups[0].features
    assert f.dp.tolist() == [4]
    assert f.accumulation.tolist() == [16]  # 64 sequences / (4 replicas x micro-batches of 1)
    assert f.kv_width.tolist() == [4096]
    assert any("micro_batch_size" in sentence for sentence in points.assumptions)


def test_empty_cells_take_the_same_defaults_as_missing_columns() -> None:
    points = checked(
        {"dp": 8, "attention": None, "fused_norm": None}, {"dp": 8, "tp": float("nan")}
    )
    f = points.groups[0].features
    assert f.tp.tolist() == [1, 1]
    assert not f.math.any()


def test_layouts_in_memory_are_the_same_points_as_their_table() -> None:
    shapes = [MODELS[name] for name in ("llama2_7b", "mt5_base", "gpt2")]
    layouts = [
        Layout(tp=2, pp=2, dp=4, zero_stage=1, sequence_parallel=True, seq_length=1024),
        Layout(dp=8, zero_stage=3, zero_shard_size=4, attention="math", seq_length=512),
        Layout(cp=2, dp=2, optimizer_offload="cpu", zero_stage=2, precision="fp16", compile=True,
               micro_batch_size=4, gradient_accumulation_steps=3, seq_length=1024),
    ]  # fmt: skip
    clusters = ["h100-80gb-efa", "a100-80gb", "v100-32gb"]
    direct = points_from(
        inputs_of_layouts(layouts, shapes, models=["a", "b", "c"], clusters=clusters),
        site_clusters(),
    )
    records = [
        {
            **dataclasses.asdict(shape),
            **dataclasses.asdict(layout),
            "model": model,
            "cluster": where,
        }
        for shape, layout, model, where in zip(shapes, layouts, "abc", clusters, strict=True)
    ]
    read = points_of(Columns(pa.Table.from_pylist(records), "p"))
    one, other = (prediction_table(points, predict(points)) for points in (direct, read))
    assert one.equals(other)
    assert set(direct.assumptions) <= set(read.assumptions)


def test_a_named_model_needs_no_shape_columns() -> None:
    shape = ModelShape(
        num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=2, head_dim=16,
        ffn_hidden_size=128, vocab_size=100,
    )  # fmt: skip
    row = {"model": "tiny", "cluster": "v100-32gb", "seq_length": 32, "precision": "fp16"}
    points = points_of(Columns(pa.Table.from_pylist([row]), "p"), models={"tiny": shape})
    assert points.groups[0].features.kv_width.tolist() == [32]
    bad = Columns(pa.Table.from_pylist([{**row, "model": "tinny"}]), "p")
    with pytest.raises(InputError, match="model='tinny': has no shape columns"):
        points_of(bad, models={"tiny": shape})


def test_a_parameter_count_alone_implies_a_gpt_and_says_so() -> None:
    row = {"model": "m", "total_params": 175e9, "cluster": "a100-80gb", "seq_length": 2048}
    points = points_of(Columns(pa.Table.from_pylist([row]), "p"))
    f = points.groups[0].features
    assert f.num_layers.tolist() == [96]  # GPT-3 has 96 layers of 12288
    assert f.hidden_size.tolist() == [12288]
    assert any("total_params" in sentence for sentence in points.assumptions)


def test_clusters_a_published_table_does_not_name_are_those_its_source_names() -> None:
    points = checked(
        {"cluster": "other", "framework": "Megatron-LM (2020)", "gpus_per_node": 16,
         "precision": "fp16"},
        {"cluster": "other", "framework": "Megatron-LM (2020)", "gpus_per_node": 8},
    )  # fmt: skip
    assert points.cluster.tolist() == ["v100-32gb-dgx2h", "a100-40gb-dgx"]


def test_a_cluster_of_another_site_is_its_gpu_where_the_table_says_which() -> None:
    points = checked({"cluster": "juwels", "gpu": "a100-40gb", "dp": 4})
    assert points.groups[0].cluster.gpu == "a100-40gb"


@pytest.mark.parametrize("axis", ["tp", "pp", "cp", "dp"])
def test_one_missing_degree_follows_from_the_world_size(axis: str) -> None:
    degrees = {"tp": 2, "pp": 4, "cp": 2, "dp": 8}
    row = {name: size for name, size in degrees.items() if name != axis}
    f = checked({"world_size": 128, **row}).groups[0].features
    assert getattr(f, axis).tolist() == [degrees[axis]]


def test_an_empty_table_is_no_points() -> None:
    schema = pa.schema([("model", pa.string()), ("cluster", pa.string()), ("tp", pa.int64())])
    points = points_of(Columns(schema.empty_table(), "p"))
    assert len(points) == 0
    assert points.groups == ()


def test_outcomes_say_what_is_a_time_and_what_is_not() -> None:
    columns = Columns(
        pa.table(
            {
                "outcome": ["ok", "oom", "oom_or_crash", None, "timeout"],
                "step_time_s": [1.0, None, None, 2.0, float("nan")],
            }
        ),
        "t",
    )
    seen = observed_of(columns)
    assert seen.timed.tolist() == [True, False, False, True, False]
    assert seen.out_of_memory.tolist() == [False, True, False, False, False]
    assert seen.ambiguous.tolist() == [False, False, True, False, False]
    assert np.isnan(seen.peak_memory_bytes).all()


def test_rows_that_only_failed_are_not_taken_for_ours() -> None:
    (group,) = checked({"dp": 8, "framework": None, "outcome": "oom"}).groups
    assert group.framework == "unnamed"


def test_parquet_of_categories_and_words_for_nothing_is_the_same_rows(tmp_path: Path) -> None:
    words = {name: pa.array([str(cell)]) for name, cell in ROW.items()}
    words |= {"fsdp": pa.array(["nan"]), "Step time (ms)": pa.array(["20500"])}
    del words["step_time_s"]
    pq.write_table(pa.table(words), tmp_path / "text.parquet")
    encoded = pa.table({name: cells.dictionary_encode() for name, cells in words.items()})
    pq.write_table(encoded, tmp_path / "categories.parquet")
    steps = [
        trial(read_table(tmp_path / f"{kind}.parquet"), kind).overall.step_time
        for kind in ("text", "categories")
    ]
    assert steps[0] == steps[1] == trial(pa.Table.from_pylist([ROW]), "t").overall.step_time
