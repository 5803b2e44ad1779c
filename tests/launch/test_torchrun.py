"""Ranks on several nodes without srun: a torchrun on each, started by a remote shell.

The remote shell of these tests runs the line on this machine, in an empty environment as a login
on another one would; torchrun, the ranks and all that ends them are real.
"""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scaling.launch import measure
from scaling.launch.start.choose import choose_starter
from scaling.launch.start.local import start_local
from scaling.launch.start.torchrun import exports, nodes_of, start_by_torchrun
from scaling.record.row import Row
from tests.launch.conftest import LAUNCHER, TWO_RANKS, Study, in_time
from tests.points import tiny_point
from tests.processes import until, write_program, writers_of

pytestmark = pytest.mark.slow

REMOTE_SHELL = """\
#!/bin/sh
echo "$1" >> "{folder}/called"
exec env -i HOME="$HOME" PATH=/usr/bin:/bin sh -c "$2"
"""
TWO_EACH = {"gpus_per_node": 2, "warmup_steps": 1, "measured_steps": 1}


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job of two nodes that are both this machine; the file in which remote shells are noted."""
    program = write_program(tmp_path / "rsh", REMOTE_SHELL.format(folder=tmp_path))
    monkeypatch.setenv("SCALING_RSH", str(program))
    monkeypatch.setenv("SCALING_NODES", "localhost,127.0.0.1")
    return tmp_path / "called"


@pytest.mark.ranks
def test_ranks_of_two_nodes_train_as_the_ranks_of_one_machine_do(
    study: Study, nodes: Path, cold: Row
) -> None:
    there = measure(study.write(dataclasses.replace(TWO_RANKS, gpus_per_node=1)), study.row_path)
    assert (there.outcome, cold.outcome) == ("ok", "ok"), there.error_message
    assert there.losses == cold.losses
    assert there.stack_fingerprint == cold.stack_fingerprint
    # both shells note their node at once, in either order
    assert sorted(nodes.read_text().split()) == ["127.0.0.1", "localhost"]


Measured = Callable[..., Row]


@pytest.fixture
def on_nodes(study: Study, nodes: Path) -> Measured:
    """Measure a point of two ranks on each node, each doing what `body` says."""

    def run(body: str, time_limit_s: float = 60.0, ranks: int = 4) -> Row:
        path = study.write(tiny_point(dp=ranks, time_limit_s=time_limit_s, **TWO_EACH))
        return measure(
            path, study.row_path, rank_command=study.program(body), start=start_by_torchrun
        )

    return run


def test_the_others_say_what_they_saw_when_one_rank_dies(on_nodes: Measured, study: Study) -> None:
    row = on_nodes(
        "if rank == 3:\n"
        "    while len(files.beats()) < 3: time.sleep(0.02)\n"  # until the others are there
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "files.beat(rank, 'waits for rank 3')\n"
        "time.sleep(0.3)\nprint('peer is gone', flush=True)\ntime.sleep(60)"
    )
    assert (row.outcome, row.error_message) == ("error", "rank 3 was killed by SIGKILL")
    assert [study.log(rank).strip() for rank in range(3)] == ["peer is gone"] * 3
    assert not writers_of(study.logs)


WORKS_ON = """
for step in range(1000):
    files.beat(rank, f"step {step}")
    time.sleep(0.1)
"""


def test_a_late_point_leaves_the_stacks_of_its_ranks_and_nothing_running(
    on_nodes: Measured, study: Study
) -> None:
    row = in_time(
        lambda limit_s: on_nodes(WORKS_ON, time_limit_s=limit_s, ranks=2),
        lambda _: study.has_stacks(ranks=2),
    )
    assert row.outcome == "timeout", row.error_message
    assert study.has_stacks(ranks=2)
    assert not writers_of(study.logs)


def test_what_the_remote_shell_said_is_the_reason_of_a_failed_launch(
    on_nodes: Measured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refuses = "#!/bin/sh\necho 'Permission denied (publickey).' >&2\nexit 255\n"
    program = write_program(tmp_path / "refuses", refuses)
    monkeypatch.setenv("SCALING_RSH", str(program))
    row = on_nodes("finish()")
    assert row.outcome == "launch_failed"
    assert row.error_message == ("no rank was started on localhost: Permission denied (publickey).")

    monkeypatch.setenv("SCALING_RSH", "no-such-shell")
    missing = on_nodes("finish()")
    assert missing.outcome == "launch_failed"
    assert "no-such-shell could not be started" in str(missing.error_message)


def test_a_point_that_needs_more_nodes_than_the_job_has_says_so(
    on_nodes: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALING_NODES", "localhost")
    row = on_nodes("finish()")
    assert row.outcome == "launch_failed"
    assert "world_size=4 needs 2 nodes of 2 ranks, and this job has 1" in str(row.error_message)


def test_ranks_end_with_the_process_that_started_them(study: Study, nodes: Path) -> None:
    path = study.write(tiny_point(dp=2, **TWO_EACH))
    program = study.program("time.sleep(100)")
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, path, study.row_path, *program])
    until("both ranks run", lambda: len(writers_of(study.logs)) >= 2)
    launcher.kill()
    launcher.wait()
    until("the ranks end", lambda: not writers_of(study.logs))


def test_the_nodes_of_a_job_are_what_its_scheduler_says(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    file.write_text("n1\nn1\nn2\nn2\n")
    assert nodes_of({}) == []
    assert nodes_of({"PBS_NODEFILE": str(file)}) == ["n1", "n2"]
    assert nodes_of({"PBS_NODEFILE": str(file), "SCALING_NODES": "a, b"}) == ["a", "b"]
    answer = '#!/bin/sh\n[ "$*" = "show hostnames n[1-2]" ] && echo n1 && echo n2\n'
    write_program(tmp_path / "scontrol", answer)
    assert nodes_of({"SLURM_JOB_NODELIST": "n[1-2]", "PATH": str(tmp_path)}) == ["n1", "n2"]
    assert nodes_of({"SLURM_JOB_NODELIST": "n[1-2]", "PATH": ""}) == []


def test_several_nodes_without_srun_are_reached_by_torchrun(
    nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert choose_starter(os.environ) is start_by_torchrun
    assert choose_starter({**os.environ, "SLURM_JOB_ID": "7"}) is start_by_torchrun
    assert choose_starter({"SCALING_NODES": "alone"}) is start_local


def test_only_what_ranks_need_travels_to_a_node() -> None:
    inherited = {"NCCL_IB_HCA": "mlx5", "SECRET": "s", "HF_TOKEN": "it's", "CUDA_x%%": "() {}"}
    assert exports(inherited) == "export HF_TOKEN='it'\"'\"'s'\nexport NCCL_IB_HCA=mlx5\n"


def test_ranks_sit_where_the_layout_wants_them_and_no_secret_of_theirs_is_an_argument(
    on_nodes: Measured, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_a secret")
    row = on_nodes(
        """
print(*(os.environ[n] for n in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")))
arguments = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
(environment,) = Path(sys.argv[-1]).parent.glob(".run-nodes-*/environment")
print(os.environ["HF_TOKEN"], any(b"hf_a" in each for each in arguments),
      oct(environment.stat().st_mode & 0o077))
finish()
"""
    )
    assert row.outcome == "ok", row.error_message
    assert [study.log(rank).splitlines() for rank in range(4)] == [
        [place, "hf_a secret False 0o0"]
        for place in ("0 0 4 localhost", "1 1 4 localhost", "2 0 4 localhost", "3 1 4 localhost")
    ]
