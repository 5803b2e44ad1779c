"""Ranks as a step of Slurm: what is asked of srun. That Slurm does it is shown in tests/slurm."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from scaling.errors import InputError
from scaling.launch.not_measured import KilledFromOutside
from scaling.launch.start import slurm
from scaling.launch.start.forked import choose_starter, start_in_allocation
from scaling.launch.start.local import start_local
from scaling.launch.start.slurm import fork_servers_command, ranks_command, start_step
from scaling.launch.start.starter import Launch, LaunchError, RankExit
from tests.points import tiny_point
from tests.processes import until, write_program


def test_neighbouring_ranks_share_a_node(tmp_path):
    point = tiny_point(dp=8, gpus_per_node=4)
    command = ranks_command(Launch([], point, {"SLURM_CPUS_PER_TASK": "6"}, tmp_path))
    assert command == [
        "srun",
        "--nodes=2",
        "--ntasks=8",
        "--ntasks-per-node=4",
        "--distribution=block",
        "--kill-on-bad-exit=0",
        "--unbuffered",
        "--cpus-per-task=6",
        f"--output={tmp_path}/rank%t.log",
        "--input=none",
        "--overlap",
        "--mem=0",
        "--export=ALL",
    ]


@pytest.mark.parametrize(
    ("text", "why"), [('"unclosed', "no closing quotation"), ("a\\", "no escaped character")]
)
def test_options_of_a_site_that_no_shell_reads_are_one_sentence(tmp_path, text, why):
    launch = Launch([], tiny_point(), {"SRUN_ARGS": text}, tmp_path)
    sentence = f"SRUN_ARGS={text}: must be options of srun as a shell reads them: {why}"
    for command in (ranks_command, partial(fork_servers_command, place=tmp_path)):
        with pytest.raises(InputError) as refused:
            command(launch)
        assert str(refused.value) == sentence


@pytest.fixture
def fake_srun(tmp_path, monkeypatch):
    """An srun that says why it cannot; the file in which its calls are counted."""
    tools = tmp_path / "tools"
    tools.mkdir()
    calls = tmp_path / "calls"
    srun = f"#!/bin/sh\necho called >> {calls}\necho 'srun: error: Invalid node'\nexit 1\n"
    write_program(tools / "srun", srun)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setattr(slurm, "_LAUNCH_PAUSE_S", 0.0)
    return calls


def test_a_step_that_cannot_be_created_is_tried_again_then_quoted(tmp_path, fake_srun):
    with pytest.raises(LaunchError, match="srun failed 3 times: srun: error: Invalid node"):
        start_step(
            Launch(["rank"], tiny_point(), {"PATH": str(fake_srun.parent / "tools")}, tmp_path)
        )

    assert fake_srun.read_text() == "called\n" * 3


OVER = """\
srun: error: Unable to confirm allocation for job 7: Invalid job id specified
srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 7
"""


def test_who_outlives_the_allocation_blames_no_point(tmp_path, fake_srun):
    srun = f"#!/bin/sh\necho called >> {fake_srun}\necho '{OVER}'\nexit 1\n"
    write_program(fake_srun.parent / "tools/srun", srun)

    with pytest.raises(KilledFromOutside, match="the allocation is over: srun: Check SLURM_JOB_ID"):
        start_step(
            Launch(["rank"], tiny_point(), {"PATH": str(fake_srun.parent / "tools")}, tmp_path)
        )

    assert fake_srun.read_text() == "called\n"


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
def test_the_shell_of_a_rank_survives_a_signal_and_reports_its_end(
    tmp_path, monkeypatch, ends, code
):
    # the step may not have ended when its ranks are killed: then scancel is called
    for name, text in (("srun", SRUN_OF_ONE_TASK), ("scancel", "#!/bin/sh\n")):
        write_program(tmp_path / name, text)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    monkeypatch.setenv("PATH", environment["PATH"])
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


def test_a_step_that_is_killed_whole_for_its_memory_is_told_by_srun(tmp_path, monkeypatch):
    write_program(tmp_path / "srun", SRUN_WHOSE_STEP_IS_KILLED)
    monkeypatch.setattr("scaling.launch.start.slurm._LISTING_LAG_S", 0.0)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    monkeypatch.setenv("PATH", environment["PATH"])
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


def test_ranks_are_killed_although_slurm_does_not_answer_at_once(tmp_path, monkeypatch):
    for name, text in (("srun", STARTS), ("scancel", ANSWERS_THE_THIRD_TIME)):
        write_program(tmp_path / name, text.format(folder=tmp_path))
    monkeypatch.setattr(slurm, "_SILENT_PAUSE_S", 0.01)
    monkeypatch.setenv("SCANCEL_INTERACTIVE", "1")  # it would ask back
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    step = start_step(Launch(["sleep", "600"], tiny_point(), dict(os.environ), tmp_path))

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


def test_ranks_are_a_step_in_an_allocation_and_local_processes_elsewhere(fake_srun, monkeypatch):
    assert choose_starter({}) is start_local
    assert choose_starter({"SLURM_JOB_ID": "7"}) is start_in_allocation
    monkeypatch.setenv("PATH", "")
    assert choose_starter({"SLURM_JOB_ID": "7"}) is start_local
