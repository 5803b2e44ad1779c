"""What of a table is set aside, assumed or refused, and the sentence that says so."""

import csv
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from scaling.cluster.hardware import Cluster
from scaling.errors import InputError
from scaling.foreign.columns import Columns
from scaling.foreign.reading import read_table
from scaling.predict.cost.model import predict
from scaling.predict.fit.validation import trial
from scaling.predict.read.observed import impossible_rows, observed_of
from scaling.predict.read.points import points_of
from tests.predict.conftest import SHAPE, checked, table_of
from tests.predict.test_spelled_tables import ROW
from tests.shipped import MODELS


def test_a_model_that_nobody_knows_leaves_out_its_rows_alone() -> None:
    rows = [{"model": name, "cluster": "h100-80gb", "seq_length": 4096, "dp": 8}
            for name in ("Llama-3-8B", "Nemotron V9")]  # fmt: skip
    points = points_of(Columns(pa.Table.from_pylist(rows), "t"), models=MODELS)
    assert points.note.tolist() == [
        None, "model=Nemotron V9 has no shape columns and is not known",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        ({"cluster": "mi300-192gb"}, "points.csv: row 1: cluster='mi300-192gb': unknown cluster: "
         "did you mean 'mi300x-192gb'?"),
        ({"cluster": "quantum9000"}, "cluster='quantum9000': unknown cluster: allowed: a100"),
        ({"precision": "fp9"}, "precision='fp9': did you mean 'fp8'?"),
    ],
)  # fmt: skip
def test_a_word_nobody_knows_is_refused_with_what_would_be_right(
    cell: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        checked({"dp": 8, **cell})


def test_a_row_without_its_shape_is_left_out_with_a_reason_and_the_others_stay() -> None:
    points = checked({"dp": 8, "num_layers": None}, {"dp": 8})
    assert points.note.tolist() == ["num_layers is not given", None]
    assert points.groups[0].rows.tolist() == [1]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"tp": 0}, r"points.csv: row 1: tp=0: must be a whole number from 1 to 10,000,000"),
        ({"tp": 1.5}, r"points.csv: row 1: tp=1.5: must be a whole number"),
        ({"dp": 1e30}, r"points.csv: row 1: dp=1e\+30: must be a whole number"),
        ({"hidden_size": 10**18}, r"points.csv: row 1: hidden_size=10{18}: must be a whole number"),
        ({"tp": "two"}, r"points.csv: row 1: tp='two': must be a number"),
        ({"attention": "flash22"}, r"row 1: attention='flash22': did you mean 'flash2'\?"),
        ({"sequence_parallel": "perhaps"}, r"row 1: sequence_parallel='perhaps': must be true or"),
        ({"cluster": "h100-80gb-efs"}, r"row 1: cluster='h100-80gb-efs': unknown cluster: did you"),
        ({"model": "x" * 10**6, "tp": "y" * 10**6}, r"tp='y{59}\.\.\.: must be a number"),
    ],
)
def test_bad_input_is_one_sentence(row: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        checked(row)


def test_rows_without_a_rate_for_their_precision_are_left_out_and_the_others_predicted() -> None:
    rows = [{"dp": 8, "cluster": c, "precision": "fp8"} for c in ("a100-80gb", "h100-80gb")]
    points = checked(*rows, {"dp": 8, "cluster": "h100-80gb", "precision": "nvfp4"})
    assert points.note.tolist() == [
        "precision=fp8 has no published peak on gpu=a100-80gb, which has fp32, fp16, bf16",
        None,
        "precision=nvfp4 has no published peak on gpu=h100-80gb, which has fp32, fp16, bf16, fp8",
    ]
    assert predict(points).predicted.tolist() == [False, True, False]


def test_what_is_not_modelled_of_a_row_is_its_reason() -> None:
    points = checked(
        {"dp": 8, "num_experts": 8},
        {"dp": 8, "attention_kind": "retention"},
        {"dp": 8},
    )
    experts = "num_experts without experts_per_token and expert_ffn_hidden_size"
    kind = "attention_kind is none that is modelled (mha, gqa, mqa, mla, windows)"
    assert points.note.tolist() == [experts, kind, None]


def test_validation_says_how_many_rows_are_set_aside_for_each_reason() -> None:
    rows = [{"dp": 8, "step_time_s": 9.0}, *[{"dp": 8, "num_experts": 8, "step_time_s": 9.0}] * 2]
    rows.append({"dp": 8, "precision": "fp8", "step_time_s": 9.0})
    found = trial(table_of(*rows), "rows.csv")
    assert (found.tested_rows, found.overall.rows) == (4, 1)
    assert found.notes[1:] == [
        "2 rows are set aside: num_experts without experts_per_token and expert_ffn_hidden_size",
        "1 rows are set aside: precision=fp8 has no published peak on gpu=a100-80gb, "
        "which has fp32, fp16, bf16",
    ]


def test_a_table_without_a_cluster_is_refused_because_hardware_is_never_guessed() -> None:
    table = pa.Table.from_pylist([{k: v for k, v in SHAPE.items() if k != "cluster"}])
    with pytest.raises(InputError, match="column cluster is missing"):
        points_of(Columns(table, "points.csv"))


def test_an_impossible_layout_is_a_note() -> None:
    points = checked({"world_size": 8, "tp": 2, "pp": 1, "cp": 1, "dp": 2}, {"pp": 64, "dp": 1})
    misfit, too_many_stages = points.note.tolist()
    assert misfit.endswith("world_size=8: world_size is not tp x pp x cp x dp")
    assert too_many_stages == "pp is larger than num_layers"


def test_a_cpu_cluster_has_no_peak_and_so_no_prediction() -> None:
    laptop = Cluster(gpu="cpu", gpus_per_node=4, nodes=1, source="test")
    points = checked({"cluster": "laptop"}, clusters={"laptop": laptop})
    assert "no peak rate" in points.note[0]
    assert not points.groups


def test_a_table_that_says_no_hardware_gets_no_prediction() -> None:
    points = checked({"cluster": "other"}, {"dp": 8})
    assert points.note.tolist() == [
        "cluster=other names no hardware, and its source is not known",
        None,
    ]


def test_an_unknown_outcome_is_refused() -> None:
    with pytest.raises(InputError, match="outcome='okay'"):
        observed_of(Columns(pa.table({"outcome": ["okay"]}), "t"))


def test_what_a_prediction_leaves_out_is_said(points):
    found = points({"dp": 8, "compile": "true", "fused_rope": "true"}, {"dp": 8})
    assert {text for text in found.assumptions if "asked for" in text} == {
        "fused_rope is asked for in 1 rows: predicted as without it",
        "compile is asked for in 1 rows: predicted with fused norms and nothing else of it",
    }


RAN = {"dp": 8, "outcome": "ok", "step_time_s": 3.0}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"step_time_s": 0.0}, r"row 2: step_time_s=0\.0: must be a finite number above 0"),
        ({"step_time_s": 1e-6}, r"row 2: step_time_s=1e-06: would take more FLOP/s than"),
        ({"step_time_low_s": 4.0}, r"row 2: step_time_s=3\.0: lies outside its own interval"),
    ],
)
def test_a_row_that_cannot_be_is_set_aside_and_named(changes: Any, sentence: str) -> None:
    rows = [RAN, {**RAN, **changes}, {**RAN, "tp": 2}, {"dp": 8, "outcome": "oom"}]
    columns = Columns(table_of(*rows), "rows")
    assert list(impossible_rows(columns, checked(*rows))) == [1]
    validation = trial(table_of(*rows), "rows")
    assert validation.tested_rows == 3
    (note,) = [note for note in validation.notes if "cannot be" in note]
    assert note.startswith("1 rows are set aside")
    assert re.search(sentence, note)


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
def test_a_row_cannot_be_only_by_what_its_model_and_gpu_really_do(
    work: Any, slow_enough_s: float, too_fast_s: float
) -> None:
    rows = [{**RAN, **work, "step_time_s": step_s} for step_s in (slow_enough_s, too_fast_s)]
    assert list(impossible_rows(Columns(table_of(*rows), "rows"), checked(*rows))) == [1]


def test_a_file_is_read_once_however_many_of_its_rows_have_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [*SHAPE, "dp", "step_time_s"]
    cells = ",".join(str(value) for value in SHAPE.values())
    lines = [f"{cells},8,{1e-6 * (1 + row)}" for row in range(50)]
    (tmp_path / "p.csv").write_text("\n".join([",".join(names), *lines, f"{cells},8,3.0", ""]))
    readers: list[Any] = []
    read = csv.reader
    monkeypatch.setattr(csv, "reader", lambda text: readers.append(text) or read(text))
    columns = Columns(read_table(tmp_path / "p.csv"), "p.csv")
    found = impossible_rows(columns, points_of(columns))
    assert len(found) == 50
    assert found[49].startswith("p.csv: line 51: ")
    assert len(readers) == 1


def test_what_decides_a_step_and_is_not_stated_is_said() -> None:
    row = {**ROW, "num_kv_heads": None, "framework": "NeMo", "num_experts": 8,
           "experts_per_token": 2, "expert_ffn_hidden_size": 4096}  # fmt: skip
    found = points_of(Columns(pa.Table.from_pylist([row, {**ROW, "source": ""}]), "t"))
    assert {
        "num_kv_heads is not given in 1 rows: taken as num_heads",
        "ep is not given in 1 rows of models with experts: taken as 1",
        "framework is not given in 1 rows: taken as software usual for their GPUs",
    } <= set(found.assumptions)


def test_conditions_that_leave_nothing_to_test_say_which_one_did() -> None:
    table = table_of({"dp": 8, "step_time_s": 9.0})
    for conditions, option in (
        ({"test_where": "false"}, "no row is left to test; widen --test-where"),
        ({"calibrate_where": "true"}, "no row is left to test; narrow --calibrate-where"),
    ):
        with pytest.raises(InputError, match=option):
            trial(table, "t", **conditions)


def test_each_unknown_outcome_is_set_aside_with_its_own_sentence() -> None:
    rows = [{"dp": 8, "outcome": word} for word in ("ok", "zzz 1", "zzz 2", "zzz 1")]
    notes = checked(*rows).note.tolist()
    assert notes[0] is None
    assert notes[1] == notes[3] != notes[2]
    assert "row 2: outcome='zzz 1': allowed: error, hang" in notes[1]
    assert "row 3: outcome='zzz 2'" in notes[2]
