"""Rows of a table that are excluded, assumed or refused, and the reason."""

import re
from typing import Any

import pytest

from scaling.cluster.hardware import Cluster
from scaling.errors import InputError
from scaling.predict.cost.model import predict
from scaling.predict.fit.validation import trial
from scaling.predict.read.observed import impossible_rows, observed_of
from scaling.predict.read.points import points_of
from tests.predict.conftest import as_table, checked, table_of


@pytest.mark.parametrize(
    ("cluster", "sentence"),
    [
        ("mi300-192gb", "points.csv: row 1: cluster=mi300-192gb: unknown: did you mean 'mi300x"),
        ("quantum9000", "cluster=quantum9000: unknown: allowed: a100"),
        (None, "cluster is not given: name the hardware of each row"),
    ],
)
def test_hardware_that_no_row_names_is_refused(cluster: str | None, sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        checked({"dp": 8, "cluster": cluster})


EXPERTS = {"num_experts": 8, "experts_per_token": 2, "expert_ffn_hidden_size": 2048}
CHUNKS = {
    **EXPERTS, "expert_ffn_hidden_size": 768, "dense_layers": 1, "framework": "scaling torch",
    "num_layers": 30, "pp": 16,
}  # fmt: skip
FP8 = "precision=fp8 has no published peak on gpu=a100-80gb, which has fp32, fp16, bf16"
NVFP4 = "precision=nvfp4 has no published peak on gpu=h100-80gb, which has fp32, fp16, bf16, fp8"
H100 = {"dp": 8, "cluster": "h100-80gb"}
LACKING = "experts_per_token and expert_ffn_hidden_size"
MULTIPLE = "a multiple of micro_batch_size x dp"
TOO_MANY = "a pipeline of more model chunks than num_layers"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"dp": 8, "cluster": "other"}, "cluster=other is unknown"),
        ({"dp": 8, "num_layers": None}, "num_layers is not given"),
        ({"dp": 8, "precision": "fp8"}, FP8),
        ({**H100, "precision": "fp8"}, None),
        ({**H100, "precision": "nvfp4"}, NVFP4),
        ({"dp": 8, "num_experts": 8}, f"num_experts without {LACKING}"),
        ({"world_size": 8, "tp": 2, "dp": 2}, "world_size is not tp x pp x cp x dp"),
        ({"world_size": 8, "tp": 3}, "world_size is not a multiple of tp x pp x cp"),
        ({"pp": 64, "dp": 1}, "pp is larger than num_layers"),
        ({"dp": 8, "global_batch_size": 12}, f"global_batch_size is not {MULTIPLE}"),
        ({"dp": 8, "ep": 4}, "ep is more than 1, and the model has no experts"),
        ({**EXPERTS, "dp": 24, "ep": 3}, "ep does not divide num_experts"),
        ({**EXPERTS, "dp": 4, "ep": 8}, "ep x etp does not divide dp x cp x tp"),
        ({**CHUNKS, "virtual_stages": 4, "pipeline_schedule": "interleaved"}, TOO_MANY),
        ({**CHUNKS, "pipeline_schedule": "zbv"}, TOO_MANY),
        (CHUNKS, None),
        ({"dp": 16, "zero_stage": 3, "zero_shard_size": 6}, "zero_shard_size does not divide dp"),
        ({"dp": 8, "zero_stage": 3, "zero_shard_size": 16}, "zero_shard_size does not divide dp"),
        ({"dp": 16, "zero_shard_size": 8}, "zero_shard_size shards nothing at zero_stage 0"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_predicted_has_a_reason(row: Any, reason: str | None) -> None:
    points = checked(row, {"dp": 8})
    assert points.note.tolist() == [reason, None]
    assert predict(points).predicted.tolist() == [reason is None, True]
    assert sorted(n for group in points.groups for n in group.rows) == [0, 1][reason is not None :]


def test_validation_counts_the_rows_set_aside_for_each_reason() -> None:
    rows = [{"dp": 8, "step_time_s": 9.0}, *[{"dp": 8, "num_experts": 8, "step_time_s": 9.0}] * 2]
    rows.append({"dp": 8, "precision": "fp8", "step_time_s": 9.0})
    found = trial(as_table(table_of(*rows), "rows.csv"))
    assert (found.tested_rows, found.overall.rows) == (4, 1)
    assert found.notes[1:] == [
        f"2 rows are set aside: num_experts without {LACKING}",
        f"1 rows are set aside: {FP8}",
    ]


def test_a_cpu_cluster_has_no_peak_and_so_no_prediction() -> None:
    laptop = Cluster(gpu="cpu", gpus_per_node=4, nodes=1, source="test")
    points = checked({"cluster": "laptop"}, clusters={"laptop": laptop})
    assert "no peak rate" in points.note[0]
    assert not points.groups


def test_what_a_prediction_leaves_out_is_said(points):
    found = points({"dp": 8, "compile": True, "fused_rope": True}, {"dp": 8})
    assert {text for text in found.assumptions if "asked for" in text} == {
        "fused_rope is asked for in 1 rows: predicted as without it",
        "compile is asked for in 1 rows: predicted with fused norms and nothing else of it",
    }


RAN = {"dp": 8, "outcome": "ok", "step_time_s": 3.0}


def test_a_row_that_cannot_be_is_set_aside_and_named() -> None:
    rows = [RAN, {**RAN, "step_time_s": 1e-6}, {**RAN, "tp": 2}, {"dp": 8, "outcome": "oom"}]
    table = as_table(table_of(*rows), "rows")
    impossible, _ = impossible_rows(table, points_of(table), observed_of(table))
    assert impossible.nonzero()[0].tolist() == [1]
    validation = trial(table)
    assert validation.tested_rows == 3
    (note,) = [note for note in validation.notes if "cannot be" in note]
    assert note.startswith("1 rows are set aside")
    assert "row 2: step_time_s=1e-06: would take more FLOP/s than peak" in note


@pytest.mark.parametrize(
    ("work", "slow_enough_s", "too_fast_s"),
    [
        # Llama-7B with 5 of 32 layers that see all tokens, 27 a window: 5.7e10 FLOPs a token
        ({"seq_length": 131072, "window": 1024, "windowed_layers": 27}, 30.0, 20.0),
        # latent attention: 6.0e9 weights, and 4.0e10 FLOPs a token
        (
            {"attention_kind": "mla", "query_rank": 0, "key_value_rank": 512, "head_dim": 128,
             "rotary_head_dim": 64, "value_head_dim": 128},
            0.55, 0.45,
        ),
        # 4.3e10 FLOPs a token at 30 TFLOP/s of the 48 that matrix cores have in fp32
        ({"cluster": "mi250x-gcd", "precision": "fp32"}, 5.85, 3.0),
    ],
)  # fmt: skip
def test_a_row_cannot_be_only_by_what_its_model_and_gpu_do(
    work: Any, slow_enough_s: float, too_fast_s: float
) -> None:
    rows = [{**RAN, **work, "step_time_s": step_s} for step_s in (slow_enough_s, too_fast_s)]
    table = as_table(table_of(*rows), "rows")
    impossible, _ = impossible_rows(table, points_of(table), observed_of(table))
    assert impossible.nonzero()[0].tolist() == [1]


def test_what_decides_a_step_and_is_not_stated_is_said() -> None:
    row = {"framework": "NeMo", "cluster": "h100-80gb-dgx", "dp": 8, "gated_mlp": None}
    assert {
        "num_kv_heads is not given in 2 rows: taken as num_heads",
        "activation_checkpointing is not given in 2 rows: taken as what their memory asks for",
        "framework is not given in 1 rows: taken as software that nobody described",
    } <= set(checked(row, {"dp": 8, "framework": None, "source": "a blog"}).assumptions)


@pytest.mark.parametrize(
    ("step_time_s", "conditions", "sentence"),
    [
        (9.0, {"test_where": "false"}, "no row is left to test; widen --test-where"),
        (9.0, {"calibrate_where": "true"}, "no row is left to test; narrow --calibrate-where"),
        (9.0, {"calibrate_where": "dp > 8"}, "--calibrate-where leaves no row to calibrate on; w"),
        (1e-9, {}, "no row is left to test; 1 rows are set aside because they cannot be, the "
            "first: .*step_time_s=1e-09: would take more FLOP/s"),
    ],
)  # fmt: skip
def test_conditions_that_leave_nothing_say_which_one_did(
    step_time_s: float, conditions: dict[str, str], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        trial(as_table(table_of({"dp": 8, "step_time_s": step_time_s})), **conditions)
