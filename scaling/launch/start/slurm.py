"""What Slurm says of the allocation that this process runs in, and ranks as one step of it.

srun places them, a shell stands around each. Slurm's variables, commands and options stand here,
nowhere else in the launcher.
"""

import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scaling.launch.start.rank_exits import AFTER, BEFORE, ShellRanks
from scaling.launch.start.starter import Launch, LaunchError, Ranks, all_or_none

_ASK_LIMIT_S = 30.0
# Slurm's words for a node that runs nothing any more; `*` after a word: it does not answer
_LOST = ("down", "fail", "error", "unk")
# What begins so in a node's environment is about that node, wherever an order for it came from.
OF_THIS_NODE = ("SLURM", "CUDA_VISIBLE", "ROCR")

_LAUNCHES = 3  # a step that Slurm fails to create is tried again
_LAUNCH_PAUSE_S = 5.0
_LAUNCH_LIMIT_S = 300.0
_STEP = "step"  # the file in which rank 0 says what Slurm calls the step

# $1: where to say how the rank ended; then its command. Slurm sends every signal to the shell too,
# which stays to say what became of its rank: USR1 asks ranks for their stacks, and the others end
# those that set no handler.
_RANK_SHELL = f"""\
trap '' USR1
trap : TERM INT HUP USR2
export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID MASTER_ADDR=$SLURMD_NODENAME
folder=$1
shift
[ "$RANK" != 0 ] || echo "$SLURM_JOB_ID.$SLURM_STEP_ID" > "$folder/step"
{BEFORE}
"$@"
code=$?
{AFTER}exit $code
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """A job of a folder. position: its place among the `waiting` of its partition; None: runs.

    starts_at: when Slurm expects it to start, in its words; None: it does not say, or it runs.
    """

    job_id: str
    partition: str
    nodes: int
    reason: str
    position: int | None
    waiting: int
    starts_at: str | None

    @property
    def line(self) -> str:
        """Where it waits and why, in Slurm's words."""
        start = "" if self.starts_at is None else f", starts {self.starts_at[:16]}"
        return (
            f"job {self.job_id}, {self.position} of {self.waiting} in {self.partition}, "
            f"{self.nodes} node{'s' * (self.nodes > 1)}, {self.reason}{start}"
        )


def queued(folder: Path) -> list[Queued]:
    """The jobs that were submitted from this folder; none where Slurm is not or does not answer.

    Places are by Slurm's priority at this moment: backfilling may let a later job start first.
    """
    fields = "--format=%i|%P|%T|%D|%Q|%r|%S|%Z"
    answer = _answer("squeue", "--noheader", "--states=PENDING,RUNNING", fields)
    lines = [line.split("|", 7) for line in answer.splitlines()]
    jobs = [job for job in lines if len(job) == 8 and job[3].isdigit() and job[4].isdigit()]
    ours = []
    for name, partition, state, nodes, priority, reason, start, place in jobs:
        if place.strip() != str(folder):
            continue
        rivals = [int(job[4]) for job in jobs if job[1] == partition and job[2] == "PENDING"]
        ahead, waits = sum(other > int(priority) for other in rivals), state == "PENDING"
        ours.append(
            Queued(
                job_id=name,
                partition=partition,
                nodes=int(nodes),
                reason=reason,
                position=ahead + 1 if waits else None,
                waiting=len(rivals),
                starts_at=start if waits and start[:1].isdigit() else None,
            )
        )
    return ours


def _answer(*command: str) -> str:
    """What Slurm answers; nothing where it is not, or does not."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ASK_LIMIT_S, check=False,
            errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def job_id(environment: Mapping[str, str]) -> str | None:
    """The job that this runs in, None outside Slurm."""
    return environment.get("SLURM_JOB_ID")


def restart_count(environment: Mapping[str, str]) -> str:
    """How often Slurm has started this job anew."""
    return environment.get("SLURM_RESTART_COUNT", "0")


def can_start_steps(environment: Mapping[str, str]) -> bool:
    """Whether this is an allocation whose nodes srun reaches."""
    return job_id(environment) is not None and shutil.which("srun") is not None


def node_name(environment: Mapping[str, str]) -> str | None:
    """What Slurm calls this node; None outside a job, and on the login node of an `salloc`."""
    return environment.get("SLURMD_NODENAME")


def node_number(environment: Mapping[str, str]) -> int:
    """The place of this node in its step."""
    return int(environment.get("SLURM_NODEID", "0"))


def node_names(environment: Mapping[str, str]) -> list[str]:
    """The nodes of the job; empty outside one, and where scontrol is not found."""
    scontrol = shutil.which("scontrol", path=environment.get("PATH"))
    listed = environment.get("SLURM_JOB_NODELIST")
    if not listed or not scontrol:
        return []
    command = [scontrol, "show", "hostnames", listed]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()


def lost_nodes(environment: Mapping[str, str], *, silent: bool) -> list[str]:
    """Names of this allocation's nodes that Slurm calls lost, each with its word for it.

    Empty outside an allocation, and where Slurm does not answer: then nothing is known. Where a
    node is lost, no point is to blame. A node that does not answer counts if `silent`: minutes may
    pass until Slurm calls it down.
    """
    nodes = environment.get("SLURM_JOB_NODELIST")
    if not nodes:
        return []
    answer = _answer("sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N %t")
    # a node is listed once for each partition
    states = dict(line.split() for line in answer.splitlines() if len(line.split()) == 2)
    return [
        f"{name} ({state})"
        for name, state in sorted(states.items())
        if state.startswith(_LOST) or (silent and state.endswith("*"))
    ]


def ranks_command(launch: Launch) -> list[str]:
    """`srun` and its options for the ranks; `$SRUN_ARGS` are more, such as a container's."""
    cpus = launch.environment.get("SLURM_CPUS_PER_TASK")  # which srun does not take from sbatch
    return _srun(
        launch.environment,
        f"--nodes={launch.nodes}",
        f"--ntasks={launch.world_size}",
        f"--ntasks-per-node={launch.per_node}",
        "--distribution=block",
        "--kill-on-bad-exit=0",  # the watcher ends the others, once they have said what they saw
        "--unbuffered",
        f"--output={launch.logs}/rank%t.log",
        *([f"--cpus-per-task={cpus}"] if cpus else []),
    )


def fork_servers_command(launch: Launch, place: Path) -> list[str]:
    """`srun` and its options, for one fork server on each node that may use all of it."""
    # -c would mean these cores only (--exact): all of the node, whatever was said of one task
    cpus = launch.environment.get("SLURM_CPUS_ON_NODE") or str(
        launch.per_node * int(launch.environment.get("SLURM_CPUS_PER_TASK", "1"))
    )
    return _srun(
        launch.environment,
        f"--nodes={launch.nodes}",
        f"--ntasks={launch.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={cpus}",
        "--cpu-bind=none",
        "--kill-on-bad-exit=1",
        "--job-name=hosts",
        f"--output={place}/node%t.log",
    )


def _srun(environment: Mapping[str, str], *options: str) -> list[str]:
    """A step that has all of the allocation, also when this runs inside another step."""
    shared = ("--input=none", "--overlap", "--mem=0")
    # a site may have sbatch hand on nothing, and steps take after it
    site = ("--export=ALL", *shlex.split(environment.get("SRUN_ARGS", "")))
    return ["srun", *options, *shared, *site]


def signal_step(step: str, number: int) -> None:
    """Send a signal to every process of a step."""
    command = ["scancel", f"--signal={number}", step]
    subprocess.run(command, capture_output=True, timeout=60, check=False)


def start_step(launch: Launch) -> Ranks:
    """Start all ranks as one step of this allocation, and wait until the first of them runs.

    Raises:
        LaunchError: Slurm could not create the step, several times; its text is what srun printed.
    """
    of_rank = {
        **launch.environment,
        "WORLD_SIZE": str(launch.world_size),
        "LOCAL_WORLD_SIZE": str(launch.per_node),
    }
    shell = [*ranks_command(launch), "bash", "-c", _RANK_SHELL, "rank"]
    for attempt in range(_LAUNCHES):
        if attempt:
            time.sleep(_LAUNCH_PAUSE_S)
        folder = Path(tempfile.mkdtemp(prefix=".run-step-", dir=launch.logs))
        step = StepRanks(folder, launch.world_size)
        with all_or_none(step):
            step.start([*shell, str(folder), *launch.command], of_rank)
            failed = step.wait_for_start(lambda _: _STEP, _LAUNCH_LIMIT_S)
        if failed is None:
            return step
        step.kill()
    raise LaunchError(f"srun failed {_LAUNCHES} times: {step.last_words()}")


class StepRanks(ShellRanks):
    """The ranks of one step, seen through one srun."""

    def signal(self, number: int) -> None:
        """See `ShellRanks`."""
        for srun in self._shells:
            if srun.poll() is not None:
                continue
            if self._has(_STEP):
                signal_step((self._folder / _STEP).read_text().strip(), number)
            else:  # not placed yet: srun gives its request up
                srun.terminate()
