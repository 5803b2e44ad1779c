"""Faults of a site, its Slurm or its users."""

import os
import re
import shutil
import signal
import subprocess

import pytest

from tests.processes import until, write_program

pytestmark = pytest.mark.slurm

PACK = ("--submitit-pack", "3")


def test_steps_ended_from_outside_give_no_verdict(study):
    # as in the grace period of a preemption: what srun has started is told to end, nobody else is
    once = "test -e again || { touch again; srun bash -c 'touch ready; sleep 300'; }"
    study.points(
        p0={"seconds": 0}, p1={"command": once}, p2={"command": "echo $SLURM_RESTART_COUNT"}
    )
    run = study.started("p1", options=PACK)
    (job,) = study.lab.queue()
    until("the step runs", lambda: (study.folder / "ready").exists())
    study.lab.ask("scancel", "--signal=TERM", job)
    assert run.wait(timeout=500) == 0, study.said
    assert study.starts() == {"p0": 1, "p1": 2, "p2": 1}
    assert study.jobs() == {job}
    assert (study.folder / "out/p2.txt").read_text() == "1\n"


FLAKY = """\
#!/bin/bash
{sbatch} "$@"
code=$?
[ -e {folder}/told ] && exit $code
touch {folder}/told
echo "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received" >&2
exit 1
"""


def test_an_unconfirmed_allocation_is_cancelled_and_sent_again(study, tmp_path):
    (tmp_path / "bin").mkdir()
    flaky = FLAKY.format(sbatch=shutil.which("sbatch"), folder=tmp_path)
    write_program(tmp_path / "bin/sbatch", flaky)
    study.environment["PATH"] = f"{tmp_path}/bin:{os.environ['PATH']}"
    study.points(a={"seconds": 1}, b={"seconds": 1})
    assert study.run(*PACK) == 0, study.said
    assert study.starts() == {"a": 1, "b": 1}
    assert len(study.jobs()) == 2
    assert "Zero Bytes were transmitted or received; 2 jobs wait" in study.said


def test_what_users_set_for_their_own_eyes_hides_no_job(study):
    study.environment |= {
        "SQUEUE_STATES": "SUSPENDED",
        "SQUEUE_PARTITION": "high",
        "SQUEUE_FORMAT": "%j",
        "SACCT_FORMAT": "User",
        "SLURM_TIME_FORMAT": "relative",
        "SCANCEL_INTERACTIVE": "true",
        "SBATCH_EXPORT": "NONE",  # and their site exports nothing into jobs
    }
    comment = os.fsdecode(b"--comment=\xe9t\xe9")
    other = study.lab.submit("--hold", comment, command="true")
    study.points(a={"seconds": 3}, b={"command": "GREETING=hello srun bash -c 'echo $GREETING'"})
    assert study.run(*PACK) == 0, study.said
    study.lab.ask("scancel", other)
    assert study.starts() == {"a": 1, "b": 1}
    assert (study.folder / "out/b.txt").read_text() == "hello\n"
    assert "does not answer" not in study.said


def test_a_snakemake_inside_a_job_does_not_pass_that_jobs_shape_on(study):
    study.environment |= {"SLURM_JOB_ID": "1", "SLURM_MEM_PER_CPU": "50"}
    study.points(a={"command": "srun hostname"})
    assert study.run() == 0, study.said
    assert "this Snakemake runs inside job 1" in study.said


def test_a_failing_line_of_set_up_stops_the_allocation_and_is_shown(study):
    study.points(a={"slurm_setup": "ls /nowhere\nexport GREETING=hello"}, b={"seconds": 0})
    assert study.run() == 1
    assert study.starts() == {"b": 1}
    assert "is FAILED: a line of slurm_setup failed: ls /nowhere" in study.said


def test_sigterm_sends_nothing_more_and_lets_what_runs_come_to_its_end(study):
    study.points(a={"command": "until [ -e go ]; do sleep 0.2; done"}, b={"seconds": 0})
    run = study.started("a", options=("--submitit-max-allocations", "1"))
    run.send_signal(signal.SIGTERM)
    until("it is told", lambda: "Will exit after finishing" in study.said)
    (study.folder / "go").touch()
    assert run.wait(timeout=500) == 1
    assert study.done() == {"a"}
    assert len(study.jobs()) == 1
    assert study.run() == 0, study.said
    assert study.starts() == {"a": 1, "b": 1}


def test_a_node_on_which_nothing_can_run_swallows_no_study(study):
    # whichever node is the first to get two allocations: Slurm need not send both to the same one
    first = (
        "try=tries.$(hostname); [ -L unusable ] || touch $try.$SLURM_JOB_ID; "
        "[ $(ls $try.* 2> /dev/null | wc -l) -lt 2 ] || ln -s $(hostname) unusable 2> /dev/null; "
        "[ -L unusable ] && [ $(hostname) != $(readlink unusable) ] || exit 76"
    )
    study.points(**{f"p{i}": {"command": f"{first}; hostname"} for i in range(4)})
    assert study.run("--submitit-pack", "2") == 0, study.said
    assert study.done() == {f"p{i}" for i in range(4)}
    unusable = (study.folder / "unusable").readlink()
    # three if the other allocation had been sent there as well when the second failure was noted
    assert re.search(f"{unusable} was excluded after [23] failures of its own", study.said)
    assert len(study.jobs()) <= len(list(study.folder.glob("tries.*"))) + 3


def test_what_a_rule_cannot_get_is_refused_before_anything_is_sent(study):
    study.points(a={"seconds": 0}, b={"slurm_extra": "--time=9"})
    assert study.run() == 1
    assert "rule point: resource slurm_extra='--time=9': --time is set by" in study.said
    assert study.starts() == {}


def test_a_point_that_ends_on_a_full_disk_counts_and_is_not_run_again(study):
    records = study.folder / ".snakemake" / "submitit"
    records.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", records], check=True)
    try:
        fill = f"dd if=/dev/zero of={records}/fill bs=1k 2> /dev/null || true"
        study.points(a={"command": fill}, b={"seconds": 0})
        run = study.start("--submitit-pack", "2", "--ignore-incomplete")
        until("one job waits", lambda: "No space left on device; 1 jobs wait" in study.said)
        (records / "fill").unlink()
        assert run.wait(timeout=500) == 0, study.said
        assert study.starts() == {"a": 1, "b": 1}
    finally:
        subprocess.run(["umount", "--lazy", records], check=True)
