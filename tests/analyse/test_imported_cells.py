"""Cells of a published table: what they mean, and which are refused or leave out their row."""

import re

import pytest

from scaling.analyse.importing import NEEDED
from scaling.errors import InputError
from tests.analyse.conftest import read

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("way", ["empty cells", "no such columns"])
def test_what_a_source_does_not_say_stays_null(imported, way):
    unsaid = ("micro_batch_size", "precision", "zero_stage", "attention")
    cells = dict.fromkeys(unsaid, "") if way == "empty cells" else {}
    (found,) = imported(cells, drop=() if cells else unsaid)("layouts")
    assert {name: found[name] for name in unsaid} == dict.fromkeys(unsaid)
    assert found["tokens_per_s"] == 32 * 128 / 0.5


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"world_size": "eight"}, r"line 2: world_size='eight': must be a number"),
        ({"world_size": "8.5"}, r"line 2: world_size=8.5: must be a whole number"),
        ({"world_size": "9" * 30}, r"line 2: world_size=1e\+30: must be a whole number"),
        (
            {"world_size": "12", "dp": "4"},
            r"line 2: world_size=12: world_size is not tp",
        ),
        ({"dp": "8"}, r"line 2: world_size=8: world_size is not tp x pp x cp x dp"),
        ({"tp": "0"}, r"line 2: tp=0: must be a whole number from 1"),
        ({"num_heads": "0"}, r"line 2: num_heads=0: must be a whole number from 1"),
        ({"zero_stage": "9"}, r"line 2: zero_stage=9: must be a whole number from 0 to 3"),
        ({"global_batch_size": "33"}, r"line 2: global_batch_size=33: global_batch_size is not mi"),
        ({"step_time_s": "1e-9"}, r"line 2: step_time_s=1e-09: would take more FLOP/s than"),
        (
            {"step_time_low_s": "0.6", "step_time_high_s": "0.7"},
            r"line 2: step_time_s=0.5: lies outside its own interval",
        ),
        (
            {
                "hidden_size": "9000000",
                "vocab_size": "9999999",
                "ffn_hidden_size": "9999999",
                "num_layers": "9999999",
            },
            r"line 2: total_params would be \S+e\+\d+",
        ),
        ({"gated_mlp": "perhaps"}, r"line 2: gated_mlp='perhaps': must be true or false"),
        ({"outcome": "omm"}, r"line 2: outcome='omm': did you mean 'oom'"),
        ({"attention": "flush2"}, r"line 2: attention='flush2': did you mean 'flash2'"),
        ({"step_time_s": ""}, r"line 2: outcome=ok without a step_time_s above 0"),
        ({"step_time_s": "nan"}, r"line 2: outcome=ok without a step_time_s above 0"),
        ({"step_time_s": "inf"}, r"line 2: step_time_s=inf: must be a number"),
        ({"model": ""}, r"line 2: model is empty, and is needed"),
    ],
)
def test_a_wrong_cell_is_named_with_its_line(imported, changes, sentence):
    with pytest.raises(InputError, match=sentence):
        imported(changes)


@pytest.mark.parametrize("column", [name for name in NEEDED if name != "outcome"])
def test_a_needed_column_that_is_missing_is_named(imported, column):
    sentence = f"column {column} is missing: the table has .*; needed are model, cluster"
    with pytest.raises(InputError, match=sentence):
        imported({}, drop=(column,))


def test_a_table_without_outcomes_and_clusters_says_both_by_step_times_and_gpus(tmp_path, imported):
    imported(
        {"gpu": "NVIDIA H100 SXM5"}, {"gpu": "NVIDIA H100 SXM5", "step_time_s": "OOM"},
        drop=("outcome", "cluster"),
    )  # fmt: skip
    found = read(tmp_path / "study" / "published.parquet")
    assert {row["cluster"] for row in found} == {"h100-80gb"}
    assert sorted(row["outcome"] for row in found) == ["ok", "oom"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"precision": "fp6"}, r"line 3: precision='fp6': must be|line 3: precision='fp6': did"),
        ({"outcome": "odd"}, r"line 3: outcome='odd'"),
        ({"model": ""}, r"line 3: model is empty"),
        ({"world_size": "9"}, r"line 3: world_size=9: world_size is not tp x pp x cp x dp"),
        ({"source": "LoRA runs"}, r"line 3: source='LoRA runs': tunes a few weights"),
        ({"step_time_s": "1e-9"}, r"line 3: step_time_s=1e-09: would take more FLOP/s"),
    ],
)
def test_a_row_that_says_what_nobody_knows_is_left_out_alone(tmp_path, imported, changes, sentence):
    imported({}, changes)
    assert len(read(tmp_path / "study" / "published.parquet")) == 1
    left = [one for one in imported.said.sentences if one.startswith("left out: ")]
    assert len(left) == 1
    assert re.search(sentence, left[0])


def test_formats_of_others_keep_their_names(imported):
    rows = imported({}, {"precision": "MXFP8"}, {"precision": "nv-fp4"})("layouts")
    assert {row["precision"] for row in rows} == {"bf16", "mxfp8", "nvfp4"}
    assert len({row["layout_name"] for row in rows}) == 3


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        # cp's ranks among the replicas; local batches of two micro-batches; FSDP in a word
        ({"cp": "2", "dp": "4", "gradient_accumulation_steps": "8"}, {"dp": 2, "cp": 2}),
        ({"LBS": "4", "GA": "2"}, {"dp": 4, "gradient_accumulation_steps": 4}),
        ({"fsdp": "On"}, {"zero_stage": 3}),
        ({"fsdp": "/"}, {"zero_stage": 1}),
        ({"GBS (tokens)": "4096", "global_batch_size": ""}, {"global_batch_size": 32}),
        ({"global_batch_size": str(1 << 30), "seq_length": "8192"}, {"dp": 4}),
        ({"step_time_s": "500 ms"}, {"step_time_s": 0.5}),
        ({"step_time_s": "", "tok/s/GPU": "1,024"}, {"step_time_s": 0.5}),
        ({"step_time_s": "", "samples/sec": "64"}, {"step_time_s": 0.5}),
        ({"world_size": "", "#Nodes": "1"}, {"world_size": 8}),
        ({"step_time_s": "~0.5 ± 0.1"}, {"step_time_s": 0.5}),
        ({"peak_memory_gib": "39.47"}, {"peak_memory_bytes": round(39.47 * 2**30)}),
        ({"attention_kind": "MHA"}, {"model_flops_per_token": 6 * 162304 + 12 * 2 * 64 * 128}),
        ({"step_time_s": "", "it/s": "2"}, {"step_time_s": 0.5}),
        ({"step_time_s": "", "tokens/s": "8.192k"}, {"step_time_s": 0.5}),
        ({"step_time_s": "", "tokens/s": "8'192"}, {"step_time_s": 0.5}),
        ({"VPP": "0", "EP": "0"}, {"virtual_stages": 1, "ep": 1}),
        ({"zero_stage": "", "sharding_strategy": "FULL_SHARD"}, {"zero_stage": 3}),
    ],
)
def test_what_tables_say_in_their_own_way_comes_in(tmp_path, imported, changes, facts):
    drop = ("outcome",) if changes.get("step_time_s") == "" else ()
    if changes.get("global_batch_size"):
        changes = changes | {"micro_batch_size": "1", "step_time_s": "900"}
    imported(changes, drop=drop)
    (row,) = read(tmp_path / "study" / "published.parquet")
    assert {name: row[name] for name in facts} == pytest.approx(facts)
