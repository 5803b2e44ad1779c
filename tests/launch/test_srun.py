"""Ranks as a step of Slurm: what is asked of srun. That Slurm does it is shown in tests/slurm."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from scaling.errors import InputError
from scaling.launch.not_measured import KilledFromOutside
from scaling.launch.start import forked, slurm
from scaling.launch.start.forked import RANK_COMMAND, start_ranks
from scaling.launch.start.slurm import fork_servers_command, lost_nodes, ranks_command, start_step
from scaling.launch.start.starter import Launch, LaunchError
from scaling.record.rank_files import RankExit
from tests.points import tiny_point
from tests.processes import until, write_program

INSIDE = {"SLURM_JOB_ID": "7"}


def test_neighbouring_ranks_share_a_node(tmp_path):
    point = tiny_point(dp=8, gpus_per_node=4)
    command = ranks_command(Launch([], point, {"SLURM_CPUS_PER_TASK": "6"}, tmp_path))
    assert command == [
        "srun", "--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--distribution=block",
        "--kill-on-bad-exit=0", "--unbuffered", "--cpus-per-task=6",
        f"--output={tmp_path}/rank%t.log", "--input=none", "--overlap", "--mem=0", "--export=ALL",
    ]  # fmt: skip


def test_options_of_a_site_that_no_shell_reads_are_one_sentence(tmp_path):
    launch = Launch([], tiny_point(), {"SRUN_ARGS": '"unclosed'}, tmp_path)
    said = 'SRUN_ARGS="unclosed: must be options of srun as a shell reads them: no closing quot'
    for command in (ranks_command, partial(fork_servers_command, place=tmp_path)):
        with pytest.raises(InputError, match=said):
            command(launch)


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Programs of Slurm as shell scripts; the environment in which these are found."""
    found = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    monkeypatch.setenv("PATH", found["PATH"])
    monkeypatch.setattr(slurm, "_LAUNCH_PAUSE_S", 0.0)

    def write(**programs):
        for name, text in programs.items():
            write_program(tmp_path / name, text)
        return found

    return write


OVER = """\
srun: error: Unable to confirm allocation for job 7: Invalid job id specified
srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 7
"""


@pytest.mark.parametrize(
    ("printed", "error", "message", "calls"),
    [
        ("srun: error: Invalid node", LaunchError, "srun failed 3 times: srun: error: Invalid", 3),
        # who outlives the allocation blames no point
        (OVER, KilledFromOutside, "the allocation is over: srun: Check SLURM_JOB_ID", 1),
    ],
)
def test_a_step_that_cannot_be_created_is_tried_again_while_the_job_lives(
    tmp_path, path, printed, error, message, calls
):
    srun = f"#!/bin/sh\necho called >> {tmp_path}/calls\necho '{printed}'\nexit 1\n"
    environment = path(srun=srun)
    with pytest.raises(error, match=message):
        start_step(Launch(["rank"], tiny_point(), environment, tmp_path))
    assert (tmp_path / "calls").read_text() == "called\n" * calls


SRUN_OF_ONE_TASK = """\
#!/bin/bash
while [ "$1" != bash ]; do shift; done
export SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURMD_NODENAME=localhost
trap : TERM
"$@"
"""


@pytest.mark.parametrize(
    ("ends", "code"), [("kill -TERM 0; sleep 9", -signal.SIGTERM), ("kill -KILL $$", -9)]
)
def test_the_shell_of_a_rank_survives_a_signal_and_reports_its_end(tmp_path, path, ends, code):
    # the step may not have ended when its ranks are killed: then scancel is called
    environment = path(srun=SRUN_OF_ONE_TASK, scancel="#!/bin/sh\n")
    step = start_step(Launch(["sh", "-c", ends], tiny_point(), environment, tmp_path))
    try:
        until("the rank ends", step.exits)
        assert step.exits() == {0: RankExit(code)}
    finally:
        step.kill()


SRUN_WHOSE_STEP_IS_KILLED = """\
#!/bin/bash
folder=${@: -3:1}
echo 7.0 > $folder/step
echo "srun: error: n1: task 0: Out Of Memory"
sleep 0.2
exit 137
"""


def test_a_step_that_is_killed_whole_for_its_memory_is_told_by_srun(tmp_path, path, monkeypatch):
    environment = path(srun=SRUN_WHOSE_STEP_IS_KILLED)
    monkeypatch.setattr(slurm, "_LISTING_LAG_S", 0.0)
    step = start_step(Launch(["sh", "x"], tiny_point(), environment, tmp_path))
    until("the step ends", step.exits)
    assert step.exits() == {0: RankExit(-signal.SIGKILL, out_of_memory=True)}


STARTS = """\
#!/bin/bash
while [ "$1" != bash ]; do shift; done
export SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURMD_NODENAME=localhost
setsid "$@" &
echo $! > {folder}/step.pid
wait
"""
ANSWERS_THE_THIRD_TIME = """\
#!/bin/bash
echo asked $SCANCEL_INTERACTIVE >> {folder}/asked
[ $(wc -l < {folder}/asked) -lt 3 ] && exit 1
kill -KILL -- -$(cat {folder}/step.pid)
"""


def test_ranks_are_killed_although_slurm_does_not_answer_at_once(tmp_path, path, monkeypatch):
    scancel = ANSWERS_THE_THIRD_TIME.format(folder=tmp_path)
    environment = path(srun=STARTS.format(folder=tmp_path), scancel=scancel)
    monkeypatch.setattr(slurm, "_SILENT_PAUSE_S", 0.01)
    monkeypatch.setenv("SCANCEL_INTERACTIVE", "1")  # it would ask back
    step = start_step(Launch(["sleep", "600"], tiny_point(), environment, tmp_path))

    step.kill()

    assert (tmp_path / "asked").read_text() == "asked\n" * 3


def test_fork_servers_ask_for_all_cores_of_their_nodes():
    allocation = {"SLURM_CPUS_PER_TASK": "2", "SRUN_ARGS": "--mpi=none"}
    allocation["SLURM_JOB_CPUS_PER_NODE"] = "128(x3),64,72"  # more than all have is refused
    point = tiny_point(dp=16, gpus_per_node=8)
    command = fork_servers_command(Launch([], point, allocation, Path()), Path("place"))
    assert "--cpus-per-task=64" in command
    assert "--export=ALL" in command
    assert command[-1] == "--mpi=none"
    assert "--cpus-per-task=16" in fork_servers_command(
        Launch([], point, {"SLURM_CPUS_PER_TASK": "2"}, Path()), Path("place")
    )


@pytest.mark.parametrize(
    ("environment", "command", "how"),
    [
        ({}, RANK_COMMAND, "start_local"),
        (INSIDE, RANK_COMMAND, "start_on_fork_servers"),
        (INSIDE | {"SCALING_HOSTS": "0"}, RANK_COMMAND, "start_step"),
        (INSIDE, ["another program"], "start_step"),
        (INSIDE | {"PATH": ""}, RANK_COMMAND, "start_local"),
    ],
)
def test_ranks_start_on_fork_servers_in_a_step_or_here(
    tmp_path, path, monkeypatch, environment, command, how
):
    path(srun="#!/bin/sh\n")
    monkeypatch.setenv("PATH", environment.get("PATH", str(tmp_path)))
    for module, name in (
        (slurm, "start_step"), (forked, "start_local"), (forked, "start_on_fork_servers"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, lambda _, name=name: name)
    assert start_ranks(Launch(command, tiny_point(), environment, tmp_path)) == how


SINFO = """\
#!/bin/sh
[ "$3" = "--nodes=n[1-4]" ] && printf 'n1 alloc\\nn2 down*\\nn3 mix*\\nn3 mix*\\nn4 drng\\n'
"""


def test_a_node_that_is_down_is_lost_and_after_a_failure_a_silent_one(path, monkeypatch):
    path(sinfo=SINFO)
    inside = {"SLURM_JOB_NODELIST": "n[1-4]"}
    assert lost_nodes(inside, silent=False) == ["n2 (down*)"]
    assert lost_nodes(inside, silent=True) == ["n2 (down*)", "n3 (mix*)"]
    assert lost_nodes({}, silent=True) == []
    monkeypatch.setenv("PATH", "")
    assert lost_nodes(inside, silent=True) == []
