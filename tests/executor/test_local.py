"""The plugin with submitit's local executor: allocations are processes of this machine."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.executor.study import Study
from tests.processes import is_running
from tests.warm import warm_python

pytestmark = pytest.mark.snakemake


class LocalStudy(Study):
    """Its allocations are processes of this machine."""

    python = ""

    def start(self, *options):
        given = ["--submitit-cluster", "local", "--jobs", "100", "--latency-wait", "1", *options]
        python = self.python or warm_python()
        return self.snakemake(python, *given, "--default-resources", "mem=None", "disk=None")

    def run(self, *options):
        return self.start(*options).wait(timeout=300)


@pytest.fixture
def study(tmp_path):
    return LocalStudy(tmp_path / "study", Path(__file__).with_name("Snakefile"))


def test_a_pack_runs_and_records_its_points_one_after_another(study, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # which snakemake sets
    environment = "echo threads=${OMP_NUM_THREADS:-unset} attempt=$SNAKEMAKE_ATTEMPT"
    study.points(a=f"cat starts; {environment}", b="exit 7", c="cat starts")

    assert study.run("--submitit-pack", "3") == 1

    # its environment is the user's and not that of snakemake
    assert (study.folder / "out/a.txt").read_text().split() == ["a", "threads=unset", "attempt=1"]
    assert (study.folder / "out/c.txt").read_text().split() == ["a", "b", "c"]
    assert not (study.folder / "out/b.txt").exists()
    assert "exit code 7" in study.said


def test_a_rule_that_only_snakemake_can_run_gets_a_snakemake_of_its_own(study):
    study.points()
    study.python = sys.executable  # and so is that of the job

    assert study.run("needs_snakemake") == 0, study.said

    assert (study.folder / "out/needs_snakemake.txt").read_text() == "made by python\n"


def test_points_never_share_a_gpu_of_this_machine(study):
    study.points(**{f"p{i}": "echo $CUDA_VISIBLE_DEVICES; sleep 1; cat starts" for i in range(4)})

    assert study.run("--submitit-gpus", "4", "--config", "gpus=2") == 0, study.said

    given = [p.read_text().splitlines()[0] for p in (study.folder / "out").iterdir()]
    assert Counter(given) == {"0,1": 2, "2,3": 2}


def test_after_a_kill_the_same_command_takes_up_what_still_runs(study):
    study.points(**{f"p{i}": "sleep 3" for i in range(4)})
    study.python = sys.executable  # a warm one takes its children along
    run = study.start("--submitit-pack", "2")
    study.wait_for_start("p0", "p2")
    os.kill(run.pid, signal.SIGKILL)
    run.wait()

    assert study.run("--submitit-pack", "2") == 0, study.said

    assert study.starts() == {"p0": 1, "p1": 1, "p2": 1, "p3": 1}
    assert "re-attached to job " in study.said


def test_ctrl_c_ends_all_processes(study):
    study.points(a="echo $$ > pid.part; mv pid.part pid; sleep 300")
    run = study.start()
    while not (study.folder / "pid").exists():
        assert run.poll() is None, study.said
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)

    assert run.wait(timeout=300) == 1

    assert not is_running(int((study.folder / "pid").read_text()))


def test_what_a_rule_cannot_get_is_refused_before_anything_is_sent(study):
    study.points(a="true")
    asked = ("--set-resources", "needs_snakemake:gpu_manufacturer=nvidia")

    assert study.run("all", "needs_snakemake", *asked) == 1

    assert "rule needs_snakemake: resource gpu_manufacturer: use gpu_model" in study.said
    assert study.starts() == {}


def test_without_slurm_the_first_sentence_says_so(study, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    study.points(a="true")

    assert study.run("--submitit-cluster", "slurm") == 1

    assert "sbatch is not found" in study.said
    assert "Traceback" not in study.said
    assert study.run("--submitit-cluster", "pbs") == 1
    assert "--submitit-cluster pbs: must be one of slurm, local" in study.said


def test_a_point_that_ends_on_a_full_disk_counts_and_is_not_run_again(study):
    records = study.folder / ".snakemake" / "submitit"
    records.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", records], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("only root can make a disk that is full")
    try:
        fill = f"dd if=/dev/zero of={records}/fill bs=1k 2> /dev/null || true"
        study.points(a=fill, b="true")
        run = study.start("--submitit-pack", "2", "--ignore-incomplete")
        while "No space left on device; 1 jobs wait" not in study.said:
            assert run.poll() is None, study.said
            time.sleep(0.1)
        (records / "fill").unlink()
        assert run.wait(timeout=300) == 0, study.said
        assert study.starts() == {"a": 1, "b": 1}
    finally:
        subprocess.run(["umount", "--lazy", records], check=True)
