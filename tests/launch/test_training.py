"""The launcher and the real ranks, from the point's file to the row."""

import dataclasses
import os
import subprocess
import sys
import threading

import pytest

from scaling.cluster import node
from scaling.launch import measure
from tests.points import TINY, tiny_point
from tests.processes import until
from tests.warm import warm_rank

pytestmark = pytest.mark.ranks


def test_a_point_becomes_a_row(cold):
    row = cold
    assert (row.outcome, row.error_message, row.attempt) == ("ok", None, 1)
    assert (len(row.step_times_s), len(row.losses), len(row.grad_norms)) == (5, 6, 6)
    assert 0 < row.step_time_low_s <= row.step_time_s <= row.step_time_high_s
    assert row.losses[0] == pytest.approx(5.5, abs=0.1)  # ln 256: nothing is learned yet
    assert (row.clock, row.memory_meter) == ("perf_counter", "process_rss")
    assert row.peak_memory_bytes > 2**26
    assert 0 < row.startup_s < row.duration_s
    assert row.torch_version is not None
    assert row.deepspeed_version is not None
    assert len(row.stack_fingerprint) == 12
    assert len(row.hosts) == 1


def test_a_row_says_what_others_took_of_the_processors(study):
    """Two programs for each processor leave ranks on all of them a third or less."""
    cpus = len(os.sched_getaffinity(0))
    point = tiny_point(dp=cpus, warmup_steps=1, measured_steps=60)
    spin = [sys.executable, "-c", "while True: pass"]
    burners = []

    def burn():  # once the ranks have imported
        beats = study.logs.glob
        until(
            "ranks meet",
            lambda: any("importing" not in p.read_text() for p in beats(".run-*/rank0.beat")),
        )
        burners.extend(subprocess.Popen(spin) for _ in range(2 * cpus))

    burning = threading.Thread(target=burn)
    burning.start()
    try:
        row = measure(study.write(point), study.row_path)
    finally:
        burning.join()
        for burner in burners:
            burner.kill()
            burner.wait()
    assert row.outcome == "ok"
    assert 0.3 < row.others_share <= 1


@pytest.fixture
def warm(study):
    """Measure a point on ranks from a process that has imported, after they ran this program."""

    def run(point, program=""):
        path = study.root / "rank.py"
        path.write_text(f"{program}\nfrom scaling.train.__main__ import main\nmain()\n")
        return measure(study.write(point), study.row_path, rank_command=[warm_rank(), str(path)])

    return run


def test_a_kernel_that_is_missing_becomes_a_row(warm):
    row = warm(tiny_point(attention="flash3"))
    assert row.outcome == "kernel_unavailable"
    assert "flash-attn-3" in row.error_message
    assert row.step_times_s is None
    assert row.torch_version is not None


def test_a_model_that_does_not_fit_becomes_a_row(study):
    """The address space is limited to 8 GiB, and one weight of this model would take 20 GB."""
    huge = dataclasses.replace(TINY, vocab_size=10_000_000, hidden_size=512, num_heads=64)
    limited = ["prlimit", f"--as={8 * 2**30}", sys.executable, "-m", "scaling.train"]
    row = measure(study.write(tiny_point(shape=huge)), study.row_path, rank_command=limited)
    assert row.outcome == "oom"
    assert "can't allocate memory" in row.error_message


DIVERGING = """
from scaling.train.engines.deepspeed.engine import ReplicaTrainer
true = ReplicaTrainer.loss
seen = []
def loss(trainer):
    seen.append(true(trainer))
    return float("nan") if len(seen) == 3 else seen[-1]
ReplicaTrainer.loss = loss
"""


def test_training_that_diverges_becomes_a_row_without_numbers(warm):
    row = warm(tiny_point(warmup_steps=1, measured_steps=4), DIVERGING)
    assert row.outcome == "error"
    assert "at step 2 of 5 the loss is nan in precision=fp32" in row.error_message
    assert (row.losses, row.step_times_s, row.step_time_s) == (None, None, None)


def test_a_gpu_that_is_not_there_is_not_replaced_by_a_cpu(study):
    if node.nvidia_gpus()[0]:
        pytest.skip("this machine has a GPU")
    point = dataclasses.replace(tiny_point(), gpu="h100-80gb")
    row = measure(study.write(point), study.row_path)
    assert row.outcome == "launch_failed"
    assert "shows 0 of the 1 GPUs that the point needs on a node" in row.error_message
