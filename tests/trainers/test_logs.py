"""Logs of other programs, in small: which lines are steps, and what each of them says."""

import math
import time
from pathlib import Path

import pytest

from scaling.trainers.entries import load_trainers
from scaling.trainers.logs import failure_of, number_of, read_log, steady_seconds
from tests.conftest import PROJECT

TRAINERS = load_trainers(PROJECT / "config" / "trainers.yaml")
MEGATRON = (
    " [2026-08-22 10:00:0{n}.123456] iteration {n:8d}/      10 | consumed samples: {n:12d} | "
    "elapsed time per iteration (ms): {ms} | throughput per GPU (TFLOP/s/GPU): 401.2 | "
    "learning rate: 1.000000E-05 | global batch size:    64 | lm loss: {loss} | loss scale: 1.0 | "
    "grad norm: 1.250 | number of skipped iterations:   {skipped} | number of nan iterations:   0 |"
)


def megatron(n, ms="5000.0", loss="7.500000E+00", skipped=0):
    return MEGATRON.format(n=n, ms=ms, loss=loss, skipped=skipped)


def read(trainer, text):
    return read_log(TRAINERS[trainer], text.splitlines())


def seconds(reader, warmup=0, **more):
    return steady_seconds(reader, warmup=warmup, **more)[0]


def test_megatrons_steps_head_and_memory_are_read():
    reader = read("megatron", "\n".join([
        "using world size: 16, data-parallel size: 4, context-parallel size: 2, hierarchical "
        "context-parallel sizes: None, tensor-model-parallel size: 2, pipeline-model-parallel "
        "size: 1",
        " > padded vocab (size: 50257) with 47 dummy tokens (new size: 50304)",
        "  num_layers ...................................... 32",
        "[2026-08-22 10:00:00,1] [INFO] [config.py:1:print]   world_size ................ 4",
        *(megatron(n) for n in range(1, 5)),
        "[Rank 0] (after 2 iterations) memory (MB) | allocated: 10.00 | max allocated: 20480.50 | "
        "reserved: 3.0 | max reserved: 4.0[Rank 1] (after 2 iterations) memory (MB) | allocated: "
        "1.00 | max allocated: 30720.00 | reserved: 3.0 | max reserved: 4.0",
        " validation loss at iteration 4 | lm loss value: 7.1E+00 | lm loss PPL: 1.2E+03 | ",
        megatron(5, ms="9000.0"),
        megatron(6),
    ]))  # fmt: skip
    assert reader.head == {
        "world_size": "16", "dp": "4", "cp": "2", "tp": "2", "pp": "1", "vocab_size": "50257",
        "num_layers": "32",
    }  # fmt: skip
    assert [step.number for step in reader.steps] == [1, 2, 3, 4, 5, 6]
    assert seconds(reader, warmup=1) == [5.0] * 4  # without the step that held a validation
    assert reader.steps[0].values["loss"] == 7.5
    assert reader.peak_bytes == 30720 * 2**20


def test_a_line_that_a_terminal_wrapped_is_one_step():
    line = megatron(3, ms="4321.0")
    wrapped = "\n".join(line[at : at + 85] for at in range(0, len(line), 85))
    reader = read("megatron", f"{megatron(2)}\n{wrapped}\n{megatron(4)}")
    assert seconds(reader) == [5.0, 4.321, 5.0]


def test_a_pair_of_instant_and_average_gives_the_instant():
    assert seconds(read("megatron", megatron(1, ms="4000.5/4800.0"))) == [4.0005]


def test_skipped_and_profiled_steps_are_no_ordinary_ones():
    lines = [
        megatron(1),
        megatron(2, skipped=1),
        "Profiler: wrote a trace",
        megatron(3, "270000.0"),
    ]
    assert seconds(read("megatron", "\n".join([*lines, megatron(4)]))) == [5.0, 5.0]


TITAN = (
    "[titan] 2026-08-22 10:00:00,123 - root - INFO - step: {n:2}  loss:  7.5000  grad_norm:  1.2500"
    "  memory: 41.00GiB(51.25%)  tps: {tps}  tflops: 400.00  mfu: {mfu}"
)


def titan(n, tps="8,192", mfu="40.00%"):
    return TITAN.format(n=n, tps=tps, mfu=mfu)


def test_torchtitans_validation_is_skipped_and_tps_is_per_gpu():
    reader = read("torchtitan", "\n".join([
        "[titan] - INFO - Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=8, "
        "cp=1, tp=2, ep=1",
        "[titan] - INFO - Trainer is initialized with 8192 tokens per DP rank, 131072 tokens per "
        "train step",
        "[titan] - INFO - Applied FullAC activation checkpointing to the model",
        "[titan] - INFO - Converted Linear layers to MXFP8Linear",
        titan(1),
        "[titan] 2026-08-22 - root - INFO - validate step:  1  loss:  5.1000  memory: 40.00GiB"
        "(50.00%)  tps: 74,600",
        *(titan(n) for n in range(2, 6)),
        "[titan] - WARNING - 3 CUDA memory allocation retries.",
        titan(6, tps="1,000", mfu="N/A"),
        titan(7),
    ]))  # fmt: skip
    assert [step.number for step in reader.steps] == [1, 2, 3, 4, 5, 6, 7]
    assert (reader.head["tp"], reader.head["tokens_per_step"]) == ("2", "131072")
    # 131,072 tokens a step over 16 GPUs at 8,192 tokens/s each; 2 and 6 held something else
    assert seconds(reader, tokens=131072, gpus=16) == [1.0] * 5
    assert reader.peak_bytes == 41 * 2**30


def test_all_ranks_colours_and_labels_are_seen_through():
    coloured = f"\x1b[36m{titan(1)}\x1b[0m".replace("step:  1", "step:\x1b[32m  1\x1b[39m")
    of_rank = f"[rank0]:{titan(2)}\n[rank1]:{titan(2)}\n12: {titan(3)}\n 3: {titan(3)}"
    first_stage = titan(4).replace("loss:  7.5000", "loss: -1.0000")
    reader = read("torchtitan", f"{coloured}\n{of_rank}\n{first_stage}\n{titan(4)}")
    assert [step.number for step in reader.steps] == [1, 2, 3, 4]
    assert [step.values["loss"] for step in reader.steps] == [7.5] * 4


@pytest.mark.parametrize(
    ("trainer", "lines", "expected"),
    [
        ("nemo", 'DLLL {{"type": "LOG", "step": {n}, "data": {{"train_step_timing in s": 25.3, '
         '"reduced_train_loss": 7.5}}}}', 25.3),
        ("nemo", "Training epoch 0, iteration {n}/99 | lr: 1e-05 | global_batch_size: 64 | "
         "global_step: {n} | reduced_train_loss: 7.5 | train_step_timing in s: 2.5", 2.5),
        ("nemo", " iteration {n:8d}/      10 | consumed samples: 64 | elapsed time per iteration "
         "(ms): 2500.0 | learning rate: 1.0E-05 | lm loss: 7.5E+00 | ", 2.5),
        ("torchtitan", "[titan] 2024-11-22 - root - INFO - step: {n:2}  loss:  7.5000  memory: "
         "41.00GiB(51.25%)  wps: 66,500  mfu: 40.00%", 0.25),
        ("maxtext", "completed step: {n}, seconds: 1.250, TFLOP/s/device: 400.0, Tokens/s/device: "
         "9000.0, total_weights: 65536, loss: 7.500", 1.25),
        ("nanotron", "08/22 10:00:00 [INFO|DP=0|PP=1]: iteration: {n} / 20 | consumed_tokens: 1M | "
         "elapsed_time_per_iteration_ms: 8.79K | tokens_per_sec: 182K | tokens_per_sec_per_gpu: "
         "1.4K | global_batch_size: 64 | lm_loss: 7.5 | lr: 1e-05", 8790.0 / 1e3),
        ("picotron", "[rank 0] Step: {n} | Loss: 7.5 | Global batch size: 64 | Tokens/s: 10.64K | "
         "Tokens/s/GPU: 1.33K | MFU: 40%", 133_000 / (1330 * 8)),
        ("hf", "{{'step': {n}, 'step_time_s': '0.125000', 'loss': '7.5', 'grad_norm': '1.2'}}",
         0.125),
    ],
)  # fmt: skip
def test_a_programs_steps_are_read(trainer, lines, expected):
    reader = read(trainer, "\n".join(lines.format(n=n) for n in (1, 2, 3)))
    assert [step.number for step in reader.steps] == [1, 2, 3]
    assert {step.values["loss"] for step in reader.steps} == {7.5}
    assert seconds(reader, tokens=133_000, gpus=8) == pytest.approx([expected] * 3)


def test_the_head_of_a_log_is_read_by_the_release_that_its_steps_show():
    told = 'DLLL {"step": "PARAMETER", "data": {"tensor_model_parallel_size": 4}}'
    step = 'DLLL {"type": "LOG", "step": 1, "data": {"train_step_timing in s": 25.3}}'
    reader = read("nemo", f"{told}\n{step}")
    assert reader.head == {"tp": "4"}
    assert seconds(reader) == [25.3]


def test_without_a_time_in_the_log_a_step_lasts_from_line_to_line():
    reader = read("hf", "")
    for stamp in (10.0, 10.5, 11.0):
        reader.feed("{'loss': '7.5', 'grad_norm': '1.2', 'learning_rate': '1e-05'}", stamp)
    reader.feed("{'train_runtime': '1.5', 'train_loss': '7.5'}", 12.0)
    assert steady_seconds(reader, warmup=1) == ([0.5, 0.5], False)


@pytest.mark.parametrize(
    ("text", "value"),
    [("74,600", 74600.0), ("8.79K", 8790.0), ("'1.5'", 1.5), ("1e400", None), ("0x10", None),
     ("~1", None), ("١٢", None), ("", None)],
)  # fmt: skip
def test_a_number_is_read_whole_or_not_at_all(text, value):
    found = number_of(text)
    assert found == value or (value is None and found is not None and math.isinf(found))


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_log_of_long_lines_is_read_in_time(trainer):
    began = time.process_time()
    hostile = ["iteration 1/ 2 |" + " memory (MB)" * 50_000, "step: 1 loss:" * 50_000, "a" * 10**6]
    read_log(TRAINERS[trainer], [*hostile, "using world size: 1, " + "x" * 10**6] * 5)
    assert time.process_time() - began < 5


def test_the_texts_of_failures_have_their_outcomes():
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\nexit"
    for trainer in ("megatron", "torchtitan", "nemo", "hf"):
        assert failure_of(TRAINERS[trainer], text)[0] == "oom"
    assert failure_of(TRAINERS["hf"], "ValueError: no") is None


def test_every_entry_of_the_shipped_file_is_read():
    assert set(TRAINERS) == {
        "megatron", "torchtitan", "nemo", "hf", "maxtext", "nanotron", "picotron",
    }  # fmt: skip
    assert Path(PROJECT / "config" / "trainers.yaml").stat().st_size < 30_000
