"""Ranks as a step of Slurm: what is asked of srun. That Slurm does it is shown in tests/slurm."""

import signal
from pathlib import Path

import pytest

from scaling.launch import srun
from scaling.launch.srun import Patient, srun_command, start_in_allocation, start_step, starter
from scaling.launch.starters import LaunchError, start_here
from tests.points import tiny_point


def test_neighbours_in_rank_share_a_node_and_a_step_has_all_of_the_allocation(
    tmp_path: Path,
) -> None:
    point = tiny_point(dp=8, gpus_per_node=4)
    command = srun_command(point, {"SLURM_CPUS_PER_TASK": "6"}, tmp_path)
    assert command == [
        "srun",
        "--nodes=2",
        "--ntasks=8",
        "--ntasks-per-node=4",
        "--distribution=block",
        "--kill-on-bad-exit=0",
        "--unbuffered",
        "--input=none",
        "--overlap",
        "--mem=0",
        f"--output={tmp_path}/rank%t.log",
        "--cpus-per-task=6",
    ]


def test_half_a_node_and_a_container(tmp_path: Path) -> None:
    environment = {"SRUN_ARGS": "--container-image=torch.sqsh '--container-mounts=/a b'"}
    command = srun_command(tiny_point(dp=2, gpus_per_node=4), environment, tmp_path)
    assert command[1:4] == ["--nodes=1", "--ntasks=2", "--ntasks-per-node=2"]
    assert command[-2:] == ["--container-image=torch.sqsh", "--container-mounts=/a b"]


@pytest.fixture
def fake_srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An srun that says why it cannot; the file in which its calls are counted."""
    tools = tmp_path / "tools"
    tools.mkdir()
    calls = tmp_path / "calls"
    program = tools / "srun"
    program.write_text(
        f"#!/bin/sh\necho called >> {calls}\necho 'srun: error: Invalid node'\nexit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setattr(srun, "_LAUNCH_PAUSE_S", 0.0)
    return calls


def test_a_step_that_cannot_be_created_is_tried_again_and_then_told_in_sruns_words(
    tmp_path: Path, fake_srun: Path
) -> None:
    with pytest.raises(LaunchError, match="srun failed 3 times: srun: error: Invalid node"):
        start_step(["rank"], tiny_point(), {"PATH": str(fake_srun.parent / "tools")}, tmp_path)

    assert fake_srun.read_text() == "called\n" * 3


def test_inside_an_allocation_ranks_are_a_step_and_elsewhere_processes_of_this_machine(
    fake_srun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert starter({}) is start_here
    assert starter({"SLURM_JOB_ID": "7"}) is start_in_allocation
    monkeypatch.setenv("PATH", "")
    assert starter({"SLURM_JOB_ID": "7"}) is start_here


class Ended:
    def __init__(self, codes: dict[int, int]) -> None:
        self.codes = codes

    def exits(self) -> dict[int, int]:
        return self.codes

    def dump_stacks(self) -> None: ...

    def kill(self) -> None: ...


def test_an_end_by_sigterm_is_held_back_until_it_is_clear_that_only_the_ranks_were_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(srun.time, "monotonic", lambda: now[0])
    ranks = Patient(Ended({0: -signal.SIGTERM, 1: 0}))
    assert ranks.exits() == {}
    now[0] += 14.0
    assert ranks.exits() == {}
    now[0] += 2.0
    assert ranks.exits() == {0: -signal.SIGTERM, 1: 0}


def test_any_other_end_is_told_at_once() -> None:
    codes = {0: -signal.SIGKILL, 1: 1}
    assert Patient(Ended(codes)).exits() == codes
