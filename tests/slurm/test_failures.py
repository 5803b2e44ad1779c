"""Failures of a cluster: afterwards every point is done once or is still wanted."""

import os
import shlex
import signal
import sys

import pytest

from scaling.record.files import read_row
from tests.launch import conftest as launch
from tests.points import tiny_point
from tests.processes import until

pytestmark = pytest.mark.slurm

# p1 works for long, but only the first time: so it is p1 that is met by what happens
FOUR = {f"p{i}": {"seconds": 0} for i in range(4)}
FOUR["p1"] = {"command": "test -e again || { touch again; sleep 300; }"}
AGAIN = {"p0": 1, "p1": 2, "p2": 1, "p3": 1}
STEADY = {f"p{i}": {"seconds": 2} for i in range(4)}
PACK = ("--submitit-pack", "4")


def job_of(study):
    (job,) = study.lab.queue()
    return job


def test_without_retries_a_cancelled_point_is_left_to_the_next_run(study):
    study.points(**FOUR)
    run = study.started("p1", options=PACK)
    study.lab.ask("scancel", job_of(study))
    assert run.wait(timeout=500) == 1
    assert study.done() == {"p0", "p2", "p3"}  # those that had not begun are no worse for it
    assert "is CANCELLED" in study.said
    assert study.run(*PACK) == 0, study.said
    assert study.starts() == AGAIN


# Slurm counts in minutes and looks every 30 s; what is left of one is less than the notice
@pytest.mark.parametrize("order", ["update TimeLimit=1 JobId=", "requeue "])
def test_an_allocation_started_again_goes_on_with_unfinished_points(study, order):
    study.points(**FOUR)
    run = study.started("p1", options=PACK)
    study.lab.ask("scontrol", *f"{order}{job_of(study)}".split())
    assert run.wait(timeout=500) == 0, study.said
    assert study.starts() == AGAIN
    assert len(study.jobs()) == 1


def test_a_preempted_allocation_goes_on_later(study):
    wide = {"nodes": 4, "tasks_per_node": 8}
    study.points(**{name: {**wide, **point} for name, point in FOUR.items()})
    run = study.started("p1", options=PACK)
    urgent = ("--partition=high", "--nodes=4", "--ntasks-per-node=8")
    study.lab.submit(*urgent, command="sleep 3")
    assert run.wait(timeout=500) == 0, study.said
    assert study.starts() == AGAIN
    assert study.done() == set(FOUR)


def test_a_lost_node_costs_the_running_point_and_no_other(study):
    study.points(**FOUR)
    run = study.started("p1", options=PACK)
    node = study.lab.ask("squeue", "--noheader", "--format=%N").strip()
    study.lab.end(f"slurmd-{node}", signal.SIGKILL)
    assert run.wait(timeout=500) == 0, study.said
    assert study.done() == set(FOUR)
    # its processes live on for a while though the node is lost to Slurm
    assert study.starts()["p0"] == 1


def test_an_allocation_that_is_restarted_too_often_is_given_up(study):
    study.points(a={"seconds": 30})
    run = study.started("a", options=("--submitit-max-restarts", "0"))
    study.lab.ask("scontrol", "requeue", job_of(study))
    assert run.wait(timeout=500) == 1
    assert study.starts() == {"a": 1}
    assert "is FAILED" in study.said


def test_sbatchs_refusal_reaches_the_user_and_is_sent_once(study):
    nowhere = {"slurm_partition": "nowhere"}
    study.points(a=nowhere, b=nowhere, c={"slurm_account": "nobody"}, d={})
    assert study.run("--config", "retries=2") == 1
    assert "invalid partition specified: nowhere" in study.said
    assert "Invalid account or account/partition combination" in study.said
    assert study.done() == {"d"}
    assert study.said.count("refused") == 9  # three points, three attempts
    assert "3 sbatch" in study.said  # but one call for each request


def test_a_limit_on_submissions_is_waited_for(study):
    study.points(**{f"p{i}": {"seconds": 1, "slurm_qos": "two"} for i in range(5)})
    assert study.run() == 0, study.said
    assert study.done() == {f"p{i}" for i in range(5)}
    assert "MaxSubmitJobsPerUser" in study.said or "submit limit" in study.said


def test_a_removed_slow_node_keeps_no_point_from_running(study):
    study.points(a={"slurm_exclude": "node1,gone7"}, b={"slurm_exclude": "gone7"})
    assert study.run() == 0, study.said
    assert study.done() == {"a", "b"}


def test_accounting_that_is_down_stops_nobody(study):
    study.points(**STEADY)
    run = study.started("p0", options=PACK)
    study.lab.end("slurmdbd", signal.SIGKILL)
    assert run.wait(timeout=500) == 0, study.said
    study.lab.start()
    assert study.starts() == dict.fromkeys(STEADY, 1)


def test_a_controller_that_is_restarted_costs_nothing(study):
    study.points(**STEADY, p9={"command": "until [ -e go ]; do sleep 0.2; done"})
    run = study.started("p0", options=("--submitit-pack", "5"))
    study.lab.end("slurmctld", signal.SIGTERM)
    until("the run notices", lambda: "does not answer" in study.said)
    (study.folder / "go").touch()
    study.lab.start()
    assert run.wait(timeout=500) == 0, study.said
    assert study.starts() == dict.fromkeys([*STEADY, "p9"], 1)
    until("accounting knows", lambda: len(study.jobs()) == 1)


SLEEPING = """
import sys
from pathlib import Path
from scaling.launch import NodeLost, measure
point, row, program = map(Path, sys.argv[1:])
for attempt in range(3):
    try:
        measure(point, row, rank_command=[sys.executable, str(program)])
    except NodeLost:
        pass
"""


@pytest.fixture
def sleeping(lab, tmp_path):
    """Runs two ranks that sleep in a job, and waits for them: the study and the job's id."""
    lab.start()

    def start(*options, command="{}", **point):
        made = launch.Study(tmp_path)
        path = made.write(tiny_point(dp=2, measured_steps=1, **point))
        _, program = made.program("time.sleep(600)")
        (tmp_path / "sleeping.py").write_text(SLEEPING)
        words = [sys.executable, f"{tmp_path}/sleeping.py", str(path), str(made.row_path), program]
        command = command.format(shlex.join(words))
        job = lab.submit(f"--output={tmp_path}/job.log", *options, command=command)
        until("the ranks start", lambda: len(list(made.logs.glob(".run-*/rank*.beat"))) == 2)
        return made, job

    return start


def test_a_node_lost_under_a_living_allocation_is_not_the_points_fault(lab, sleeping, tmp_path):
    two_nodes = ("--nodes=2", "--ntasks-per-node=1", "--no-kill")
    made, job = sleeping(*two_nodes, gpus_per_node=1)
    nodes = lab.ask("squeue", "--noheader", "--format=%N", f"--jobs={job}")
    second = lab.ask("scontrol", "show", "hostnames", nodes.strip()).split()[1]
    lab.end(f"slurmd-{second}", signal.SIGKILL)
    until("the job ends", lambda: job not in lab.queue())
    attempts = [made.rows / f"retried/tiny.{n}.parquet" for n in (1, 2)]
    said = (tmp_path / "job.log").read_text()
    assert [read_row(path).outcome for path in attempts] == ["node_failed"] * 2, said
    row = read_row(made.row_path)
    assert (row.outcome, row.attempt) == ("node_failed", 3)
    assert f"Slurm has lost {second} (down" in str(row.error_message)


def test_ranks_of_a_launcher_that_was_killed_end_with_it(lab, sleeping, tmp_path):
    _, job = sleeping("--ntasks=2", command=f"{{}} & echo $! > {tmp_path}/pid; wait; sleep 600")
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    steps = ("squeue", "--noheader", "--steps", "--format=%i")
    until("the ranks' step ends", lambda: f"{job}.0" not in lab.ask(*steps).split())
    lab.ask("scancel", job)
