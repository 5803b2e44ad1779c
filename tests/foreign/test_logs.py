"""Logs of other tools, in the format those tools write, become rows and probes."""

import json

import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from scaling.cli.tables import convert
from scaling.errors import InputError
from scaling.foreign.columns import Columns
from scaling.foreign.logs import megatron, mllog, nccl_tests, nemo, torchtitan
from scaling.foreign.logs.tools import TOOLS, read_logs
from scaling.predict.cost.model import predict
from scaling.predict.fit.probes import probed_parameters
from scaling.predict.read.clusters import site_clusters
from scaling.predict.read.observed import observed_of
from scaling.predict.read.points import points_of

MEGATRON = """\
using world size: 64, data-parallel size: 2, context-parallel size: 1, hierarchical \
context-parallel sizes: None, tensor-model-parallel size: 8, pipeline-model-parallel size: 4
------------------------ arguments ------------------------
  bf16 ............................................ True
  context_parallel_size ........................... 1
  ffn_hidden_size ................................. 28672
  fp16 ............................................ False
  fp8 ............................................. None
  global_batch_size ............................... 512
  group_query_attention ........................... True
  hidden_size ..................................... 8192
  kv_channels ..................................... 128
  micro_batch_size ................................ 1
  moe_router_topk ................................. 2
  num_attention_heads ............................. 64
  num_experts ..................................... None
  num_layers ...................................... 80
  num_query_groups ................................ 8
  padded_vocab_size ............................... 128256
  pipeline_model_parallel_size .................... 4
  recompute_granularity ........................... None
  seq_length ...................................... 4096
  sequence_parallel ............................... True
  swiglu .......................................... True
  tensor_model_parallel_size ...................... 8
  untie_embeddings_and_output_weights ............. True
  use_distributed_optimizer ....................... True
  virtual_pipeline_model_parallel_size ............ 5
  world_size ...................................... 64
-------------------- end of arguments ---------------------
 [2026-03-01 10:00:00] iteration        1/     100 | consumed samples:          512 | elapsed \
time per iteration (ms): 41034.5 | throughput per GPU (TFLOP/s/GPU): 100.3 | learning rate: \
1.5E-06 | global batch size:   512 | lm loss: 1.203421E+01 | loss scale: 1.0 | grad norm: 1.234 \
| number of skipped iterations:   0 | number of nan iterations:   0 |
[Rank 0] (after 1 iterations) memory (MB) | allocated: 20480.0 | max allocated: 51200.0 | \
reserved: 52000.0 | max reserved: 52000.0
 [2026-03-01 10:00:26] iteration        2/     100 | consumed samples:         1024 | elapsed \
time per iteration (ms): 26100.0 | throughput per GPU (TFLOP/s/GPU): 412.3 | learning rate: \
1.5E-06 | global batch size:   512 | lm loss: 1.203E+01 | loss scale: 1.0 | grad norm: 1.2 | \
number of skipped iterations:   0 | number of nan iterations:   0 |
 [2026-03-01 10:00:52] iteration        3/     100 | consumed samples:         1536 | elapsed \
time per iteration (ms): 26300.0 | throughput per GPU (TFLOP/s/GPU): 412.3 | learning rate: \
1.5E-06 | global batch size:   512 | lm loss: 1.2E+01 | loss scale: 1.0 | grad norm: 1.2 | \
number of skipped iterations:   0 | number of nan iterations:   0 |
"""

NEMO = """\
Training epoch 0, iteration 0/99 | lr: 1.499e-07 | global_batch_size: 128 | global_step: 0 | \
peak_memory_usage: 61000000000 | memory_allocated: 41000000000 | reduced_train_loss: 12.1 | \
train_step_timing in s: 31.2
Training epoch 0, iteration 1/99 | lr: 2.999e-07 | global_batch_size: 128 | global_step: 1 | \
peak_memory_usage: 62000000000 | memory_allocated: 41000000000 | reduced_train_loss: 12.1 | \
train_step_timing in s: 14.7 | consumed_samples: 256
Training epoch 0, iteration 2/99 | lr: 4.498e-07 | global_batch_size: 128 | global_step: 2 | \
peak_memory_usage: 62000000000 | memory_allocated: 41000000000 | reduced_train_loss: 12.0 | \
train_step_timing in s: 14.5 | consumed_samples: 384
"""
NEMO_BAR = (
    "Epoch 0: :  10%|#  | 10/100 [01:30<13:30, reduced_train_loss=11.03, global_step=9.000, "
    "consumed_samples=2560.0, train_step_timing in s=8.850]\n"
)


def event(key, value, **metadata):
    record = {
        "namespace": "", "time_ms": 1730000000000, "event_type": "POINT_IN_TIME", "key": key,
        "value": value, "metadata": {"file": "/workspace/llm/mlperf_logger.py", "lineno": 1}
        | metadata,
    }  # fmt: skip
    return f"0: :::MLLOG {json.dumps(record)}\n"


MLLOG = (
    "srun: job 1234\n"
    + event("submission_benchmark", "llama31_405b")
    + event("global_batch_size", 1152)
    + event("max_sequence_length", 8192)
    + "".join(
        event("tracked_stats", {"train_step_time": seconds, "train_loss": 6.1}, samples_count=n)
        for n, seconds in enumerate((20.0, 8.5, 8.4, 8.6))
    )
)

TITAN = """\
\x1b[36m[rank0]:\x1b[0m[titan] 2026-01-10 09:00:00,000 - root - INFO - Building device mesh with \
parallelism: pp=1, dp_replicate=2, dp_shard=16, cp=1, tp=2, ep=1, etp=1
[rank0]:[titan] 2026-01-10 09:00:02,000 - root - INFO - Applied selective activation \
checkpointing to the model
[rank0]:[titan] 2026-01-10 09:00:02,500 - root - INFO - Compiling each TransformerBlock with \
torch.compile
[rank0]:[titan] 2026-01-10 09:00:05,000 - root - INFO - Training starts at step 1, with local \
batch size 2, global batch size 64, gradient accumulation steps 1, sequence length 8192, total \
steps 1000 (warmup 200)
[rank0]:[titan] 2026-01-10 09:00:20,000 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss: 12.2538  \
\x1b[38;2;180;60;0mgrad_norm:  3.0000  \x1b[33mmemory: 41.00GiB(51.83%)  \x1b[34mtps: 812  \
\x1b[36mtflops: 47.20  \x1b[35mmfu: 4.77%\x1b[0m
[rank0]:[titan] 2026-01-10 09:01:20,000 - root - INFO - step: 10  loss: 10.7  grad_norm:  2.5  \
memory: 46.50GiB(58.80%)  tps: 4,096  tflops: 238.03  mfu: 24.06%
"""

NCCL = """\
# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 1024 maxBytes 1073741824 step: 1024(factor) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid 101 on    node001 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid 102 on    node001 device  1 [0000:43:00] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid 201 on    node002 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid 202 on    node002 device  1 [0000:43:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)
        1024           256     float     sum      -1    24.59    0.04    0.06      0    24.44 0.04
     1048576        262144     float     sum      -1    62.10   16.89   25.33      0    61.80 16.97
  1073741824     268435456     float     sum      -1  5120.00  209.72  314.57    N/A  5118.00 209.8
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 113.32
"""


def test_megatrons_arguments_and_iterations_are_a_row():
    (row,) = megatron.parse_log(MEGATRON)
    assert row == {
        "framework": "Megatron-LM", "world_size": 64, "tp": 8, "pp": 4, "cp": 1,
        "virtual_stages": 5, "micro_batch_size": 1, "global_batch_size": 512, "seq_length": 4096,
        "num_layers": 80, "hidden_size": 8192, "ffn_hidden_size": 28672, "num_heads": 64,
        "num_kv_heads": 8, "head_dim": 128, "vocab_size": 128256, "gated_mlp": True,
        "sequence_parallel": True, "tied_embeddings": False, "zero_stage": 1,
        "activation_checkpointing": "none", "precision": "bf16", "outcome": "ok",
        "step_time_s": pytest.approx(26.2),  # the first iteration warms up
        "peak_memory_bytes": 51200 * 2**20,
    }  # fmt: skip


def test_a_megatron_run_that_ran_out_of_memory_is_a_row_without_numbers():
    text = MEGATRON.split(" [2026", 1)[0] + "torch.OutOfMemoryError: CUDA out of memory. Tried"
    (row,) = megatron.parse_log(text)
    assert row["outcome"] == "oom"
    assert "step_time_s" not in row


@pytest.mark.parametrize(
    ("arguments", "precision"),
    [
        ("  bf16 ..... True\n  fp8 ..... hybrid\n", "fp8"),
        ("  bf16 ..... True\n  fp8 ..... e4m3\n  fp8_recipe ..... mxfp8\n", "mxfp8"),
        ("  bf16 ..... False\n  fp16 ..... True\n", "fp16"),
        ("  bf16 ..... False\n  fp16 ..... False\n", "fp32"),
    ],
)
def test_megatrons_precision_is_that_of_its_layers(arguments, precision):
    (row,) = megatron.parse_log(arguments + MEGATRON[MEGATRON.index(" [2026") :])
    assert row["precision"] == precision


def test_a_megatron_row_can_be_predicted_as_it_is(tmp_path):
    (tmp_path / "train.log").write_text(MEGATRON)
    table = read_logs([tmp_path / "train.log"], "megatron", {"cluster": "h100-80gb-dgx"})
    points = points_of(Columns(table, "train.log"))
    assert predict(points).predicted.all()
    assert observed_of(Columns(table, "train.log")).timed.all()


def test_nemo_logs_of_both_ages_give_the_step():
    (row,) = nemo.parse_log(NEMO)
    assert row["step_time_s"] == pytest.approx(14.6)
    assert (row["global_batch_size"], row["peak_memory_bytes"]) == (128, 62_000_000_000)
    (old,) = nemo.parse_log(NEMO_BAR)
    assert old == {"framework": "NeMo", "outcome": "ok", "step_time_s": 8.85}


def test_an_mlperf_result_gives_the_median_of_its_tracked_steps():
    (row,) = mllog.parse_log(MLLOG)
    assert row == {
        "framework": "NeMo (MLPerf)", "outcome": "ok", "model": "llama3.1-405b",
        "global_batch_size": 1152, "seq_length": 8192, "step_time_s": 8.5,
    }  # fmt: skip


def test_an_mlperf_result_with_throughput_alone_gives_batch_over_it():
    text = event("global_batch_size", 2048) + event("tracked_stats", {"throughput": 185.6})
    assert mllog.parse_log(text)[0]["step_time_s"] == pytest.approx(2048 / 185.6)


def test_torchtitans_mesh_batch_and_tokens_a_second_are_a_row():
    (row,) = torchtitan.parse_log(TITAN)
    assert row == {
        "framework": "torchtitan", "world_size": 64, "tp": 2, "pp": 1, "cp": 1, "ep": 1, "dp": 32,
        "zero_stage": 3, "zero_shard_size": 16, "micro_batch_size": 2, "global_batch_size": 64,
        "seq_length": 8192, "activation_checkpointing": "selective", "compile": True,
        "outcome": "ok",
        "step_time_s": 64 * 8192 / 4096 / 64,
        "peak_memory_bytes": int(46.5 * 2**30),
    }  # fmt: skip


def test_nccl_tests_become_probes_that_calibrate(tmp_path):
    rows = nccl_tests.parse_log(NCCL)
    assert [row["message_bytes"] for row in rows] == [1024, 2**20, 2**30]
    assert {(row["kind"], row["ranks"], row["nodes"], row["outcome"]) for row in rows} == {
        ("all_reduce", 4, 2, "ok")
    }
    assert rows[2]["seconds"] == pytest.approx(5.12e-3)
    (tmp_path / "nccl.txt").write_text(NCCL.replace("node002", "node001"))
    table = read_logs([tmp_path / "nccl.txt"], "nccl-tests", {"cluster": "h100-80gb-dgx"})
    found = probed_parameters(Columns(table, "nccl.txt"), site_clusters())
    # 1 GiB over 4 ranks in a node: 1.5 x 2^30 bytes in 5.12 ms are 314.6 of 450 GB/s
    assert found["h100-80gb-dgx"]["link_efficiency"] == pytest.approx(0.70, abs=0.01)


def test_a_result_that_was_wrong_is_no_probe_that_is_ok():
    line = NCCL.replace("314.57    N/A", "314.57      7")
    assert [row["outcome"] for row in nccl_tests.parse_log(line)] == ["ok", "ok", "wrong"]


@pytest.mark.parametrize("tool", TOOLS)
def test_what_is_no_log_of_the_tool_is_one_sentence(tool, tmp_path):
    path = tmp_path / "other.log"
    for text in ("", "step 1 of 2\n", "\x00\xff:::MLLOG {}\n"):
        path.write_bytes(text.encode("latin-1"))
        with pytest.raises(InputError, match=f"other.log: is no log of {tool}: ") as caught:
            read_logs([path], tool, {"cluster": "h100-80gb-dgx"})
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("stated", "sentence"),
    [
        ({"lm_loss": "3"}, "--column lm_loss=3: no column of a row has that name"),
        ({"tp": "two"}, "--column tp=two: must be a whole number"),
        ({"step_times_s": "1"}, "--column step_times_s=1: the column holds lists"),
        ({"gated_mlp": "yes"}, "--column gated_mlp=yes: must be true or false"),
    ],
)
def test_a_stated_column_that_cannot_be_is_one_sentence(stated, sentence, tmp_path):
    (tmp_path / "nemo.log").write_text(NEMO)
    with pytest.raises(InputError, match=sentence):
        read_logs([tmp_path / "nemo.log"], "nemo", stated)


def test_convert_writes_a_table_with_what_the_logs_do_not_say(tmp_path):
    (tmp_path / "a.log").write_text(NEMO)
    (tmp_path / "b.log").write_text(NEMO_BAR)
    app = typer.Typer()
    app.command()(convert)
    asked = ["a.log", "b.log", "rows.parquet"]
    options = ["--tool", "nemo", "--cluster", "h100-80gb-dgx", "--column", "model=llama3_8b"]
    options += ["--column", "tp=2", "--column", "global_batch_size=256"]
    result = CliRunner().invoke(app, [*(str(tmp_path / name) for name in asked), *options])
    assert result.exit_code == 0, result.output
    assert "2 logs: 2 rows" in result.output
    rows = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert [(row["model"], row["tp"], row["global_batch_size"]) for row in rows] == [
        ("llama3_8b", 2, 256)
    ] * 2
    assert [row["step_time_s"] for row in rows] == [pytest.approx(14.6), 8.85]
