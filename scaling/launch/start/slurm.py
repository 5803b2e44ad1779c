"""Slurm's facts about this process's allocation, and ranks as one step of it.

srun places the ranks, with a shell around each. No other module here knows Slurm's words.
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scaling.cluster.node import NODE_NAME
from scaling.errors import InputError, shortened
from scaling.launch.not_measured import KilledFromOutside
from scaling.launch.start.rank_exits import (
    SHELL_AFTER_RANK,
    SHELL_BEFORE_RANK,
    end_of,
    exit_code_from_shell,
    last_line,
)
from scaling.launch.start.starter import (
    Launch,
    LaunchError,
    Ranks,
    all_or_none,
    die_with_parent,
    spawn,
    wait_until,
)
from scaling.record.rank_files import RankExit
from scaling.record.running import Runner

_ASK_LIMIT_S = 30.0
# what people set for themselves: it changes what commands print, or makes them ask back
_OF_THE_USER = ("SQUEUE_", "SINFO_", "SCANCEL_", "SLURM_TIME_FORMAT")
# Slurm's states of a lost node; a `*` after the state means that the node does not answer
_LOST = ("down", "fail", "error", "unk")
# Reasons why a job waits for nodes that somebody has to bring back
_NODES_AWAY = ("Nodes required for job are DOWN", "ReqNodeNotAvail")
# Prefixes of variables that describe a node: a fork server keeps its own values of these.
OF_THIS_NODE = ("SLURM", "CUDA_VISIBLE", "ROCR")

_SILENT_S = 300.0  # how long Slurm may not answer when ranks are to be killed
_SILENT_PAUSE_S = 1.0
_LAUNCHES = 3  # attempts to create a step
_LAUNCH_PAUSE_S = 5.0
_JOB_IS_OVER = "[Ii]nvalid job (id|[0-9])|already (completing|completed)"  # in srun's words
_LAUNCH_LIMIT_S = 300.0
_OVER_LIMIT = re.compile("oom[_-]kill|exceeded memory limit|Out Of Memory")  # in srun's words
_LOG = "srun.log"
_LISTING_LAG_S = 5.0  # until a shared file system lists a new file
_EXIT_S = 20.0
_STEP = "step"  # the file in which rank 0 leaves Slurm's id of the step

# $1: the folder for exit records; then the rank's command. Slurm sends every signal to the shell
# too, which must survive it to record the exit: USR1 asks ranks for their stacks, and the others
# end ranks without a handler.
_RANK_SHELL = f"""\
trap '' USR1
trap : TERM INT HUP USR2
export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID MASTER_ADDR=${NODE_NAME}
folder=$1
shift
[ "$RANK" != 0 ] || echo "$SLURM_JOB_ID.$SLURM_STEP_ID" > "$folder/step"
{SHELL_BEFORE_RANK}
"$@"
code=$?
{SHELL_AFTER_RANK}exit $code
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """A job that was submitted from a folder."""

    job_id: str
    partition: str
    nodes: int
    reason: str  # empty: Slurm has not said why it waits
    position: int | None  # among the `waiting` jobs of its partition; None while it runs
    waiting: int
    starts_at: str | None  # Slurm's estimate, as printed; None if unknown or running

    @property
    def line(self) -> str:
        """Its place and reason of waiting, for people."""
        why = f", {self.reason}" if self.reason else ""
        start = "" if self.starts_at is None else f", starts {self.starts_at[:16]}"
        return (
            f"job {self.job_id}, {self.position} of {self.waiting} in {self.partition}, "
            f"{self.nodes} node{'s' * (self.nodes > 1)}{why}{start}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """An answer of squeue: the jobs of a folder, and every user's jobs that run."""

    jobs: tuple[Queued, ...] = ()
    running: frozenset[str] = frozenset()  # SLURM_JOB_ID of each
    answered: bool = False
    asked_at: float = 0.0  # seconds since the epoch
    slurm: str | None = None  # the name of the Slurm that answered; None if it did not tell

    def has_lost(self, runner: Runner) -> bool:
        """Whether the job in which a point ran is over; a job of another Slurm may run."""
        known = self.answered and runner.since < self.asked_at
        known = known and (runner.slurm == self.slurm or None in (runner.slurm, self.slurm))
        return known and runner.job is not None and runner.job not in self.running


def ask_queue(folder: Path) -> Queue:
    """The jobs submitted from this folder, as squeue lists them.

    Positions follow Slurm's current priorities; backfilling may start a later job first.
    """
    asked_at = time.time()
    done = _ask_slurm("squeue", "--all", "--noheader", "--format=%A|%i|%P|%T|%D|%Q|%r|%S|%Z")
    lines = [line.split("|", 8) for line in done.stdout.splitlines()]
    jobs = [job for job in lines if len(job) == 9 and job[4].isdigit() and job[5].isdigit()]
    ours = []
    for _, name, partition, state, nodes, priority, reason, start, directory in jobs:
        if directory.strip() != str(folder):
            continue
        waits = state == "PENDING"
        if waits and reason.startswith(_NODES_AWAY):
            reason += _nodes_away(partition)
        waiting = [int(job[5]) for job in jobs if job[2] == partition and job[3] == "PENDING"]
        ours.append(
            Queued(
                job_id=name,
                partition=partition,
                nodes=int(nodes),
                reason=reason if reason != "None" else "",
                position=1 + sum(one > int(priority) for one in waiting) if waits else None,
                waiting=len(waiting),
                starts_at=start if waits and start[:1].isdigit() else None,
            )
        )
    return Queue(
        jobs=tuple(sorted(ours, key=lambda job: job.position or len(jobs))),
        running=frozenset(job[0] for job in jobs if job[3] != "PENDING"),
        answered=done.returncode == 0,
        asked_at=asked_at,
        slurm=_name_of_slurm(),
    )


def _name_of_slurm() -> str | None:
    config = _ask_slurm("scontrol", "show", "config").stdout
    name = re.search(r"^ClusterName\s*=\s*(\S+)", config, re.M)
    return None if name is None else name[1]


def _nodes_away(partition: str) -> str:
    """The nodes of a partition that take no job, with their states and their reasons."""
    fields = "--format=%N is %T: %E"
    done = _ask_slurm("sinfo", "--list-reasons", "--noheader", f"--partition={partition}", fields)
    return "".join(f"; {line.strip()}" for line in dict.fromkeys(done.stdout.splitlines()))


def _ask_slurm(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a Slurm command; it fails without output if it is missing or does not end."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(_OF_THE_USER)}
    try:
        return subprocess.run(
            command, env=kept, capture_output=True, text=True, timeout=_ASK_LIMIT_S, check=False,
            errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return subprocess.CompletedProcess(command, 1, "", "")


def job_id(environment: Mapping[str, str]) -> str | None:
    """The id of the job that this runs in, None outside Slurm."""
    return environment.get("SLURM_JOB_ID")


def allocation_name(environment: Mapping[str, str]) -> str:
    """A name for this start of the job."""
    return f"{job_id(environment)}-{environment.get('SLURM_RESTART_COUNT', '0')}"


def place_in_step(environment: Mapping[str, str]) -> tuple[int, int]:
    """The index of this node in its step, and the number of the step's nodes."""
    return int(environment.get("SLURM_NODEID", "0")), int(
        environment.get("SLURM_STEP_NUM_NODES", "1")
    )


def can_start_steps(environment: Mapping[str, str]) -> bool:
    """Whether this runs in an allocation, with srun at hand."""
    return job_id(environment) is not None and shutil.which("srun") is not None


def ran_out_of_memory(log: Path) -> bool:
    """Whether srun has printed that its step was killed for its memory."""
    return last_line(log, _OVER_LIMIT) is not None


def memory_limit_bytes(environment: Mapping[str, str]) -> int | None:
    """The memory that this job may use on a node; None if it has no limit."""
    if (per_node := environment.get("SLURM_MEM_PER_NODE")) is not None:
        return int(per_node) * 2**20 or None  # 0: all that the node has
    per_cpu = environment.get("SLURM_MEM_PER_CPU")
    cpus = environment.get("SLURM_CPUS_ON_NODE")
    return int(per_cpu) * int(cpus) * 2**20 if per_cpu and cpus else None


def lost_nodes(environment: Mapping[str, str], *, silent: bool) -> list[str]:
    """The allocation's nodes that Slurm calls lost, each with its state.

    A lost node means that the point is not to blame. Empty outside an allocation, and where Slurm
    does not answer. With `silent`, nodes that do not answer count: Slurm calls them down minutes
    later.
    """
    nodes = environment.get("SLURM_JOB_NODELIST")
    if not nodes:
        return []
    done = _ask_slurm(
        "sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--all", "--format=%N %t"
    )
    # a node is listed once for each partition
    states = dict(line.split() for line in done.stdout.splitlines() if len(line.split()) == 2)
    return [
        f"{name} ({state})"
        for name, state in sorted(states.items())
        if state.startswith(_LOST) or (silent and state.endswith("*"))
    ]


def ranks_command(launch: Launch) -> list[str]:
    """`srun` and its options for the ranks, including `$SRUN_ARGS` (such as a container's)."""
    cpus = launch.environment.get("SLURM_CPUS_PER_TASK")  # srun does not inherit it from sbatch
    return _srun(
        launch.environment,
        launch.logs / "rank%t.log",
        f"--nodes={launch.nodes}",
        f"--ntasks={launch.world_size}",
        f"--ntasks-per-node={launch.per_node}",
        "--distribution=block",
        "--kill-on-bad-exit=0",  # the watcher kills the others once they have left their records
        "--unbuffered",
        *([f"--cpus-per-task={cpus}"] if cpus else []),
    )


def fork_servers_command(launch: Launch, place: Path) -> list[str]:
    """`srun` and its options for one fork server per node, each on the whole node."""
    per_task = launch.environment.get("SLURM_CPUS_PER_TASK", "1")
    # all cores of the node: --cpus-per-task implies --exact, which would limit the step to fewer;
    # where nodes differ (`72(x2),36`), those of the smallest, as srun refuses more
    on_nodes = re.findall(r"(?:^|,)(\d+)", launch.environment.get("SLURM_JOB_CPUS_PER_NODE", ""))
    cpus = min(map(int, on_nodes), default=launch.per_node * int(per_task))
    return _srun(
        launch.environment,
        place / "agent%t.log",
        f"--nodes={launch.nodes}",
        f"--ntasks={launch.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={cpus}",
        "--cpu-bind=none",
        "--kill-on-bad-exit=1",
        "--job-name=hosts",
    )


def _srun(environment: Mapping[str, str], output: Path, *options: str) -> list[str]:
    """An srun that may use the whole allocation, also from inside another step."""
    text = environment.get("SRUN_ARGS", "")
    try:
        of_site = shlex.split(text)
    except ValueError as error:
        sentence = f"must be options of srun as a shell reads them: {str(error).lower()}"
        raise InputError(f"SRUN_ARGS={shortened(text)}: {sentence}") from None
    # srun replaces %t, and would replace the like in a folder's name
    folder = str(output.parent).replace("%", "%%")
    shared = (f"--output={folder}/{output.name}", "--input=none", "--overlap", "--mem=0")
    # where a site's sbatch exports nothing, steps would inherit that
    return ["srun", *options, *shared, "--export=ALL", *of_site]


def start_step(launch: Launch) -> Ranks:
    """Start all ranks as one step of this allocation, and wait until the first of them runs.

    Raises:
        LaunchError: Slurm repeatedly failed to create the step; the message is what srun printed.
        KilledFromOutside: this allocation has ended.
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
        # an srun that is told to end ends its step, also when this process was killed
        srun = spawn(
            [*shell, str(folder), *launch.command], of_rank, folder / _LOG,
            preexec_fn=partial(die_with_parent, signal.SIGTERM),
        )  # fmt: skip
        step = StepRanks(folder, launch.world_size, srun)
        with all_or_none(step):
            if wait_until(step.is_placed, _LAUNCH_LIMIT_S, step.lives):
                return step
        step.kill()
        if re.search(_JOB_IS_OVER, step.last_words()):  # but this process outlived it
            raise KilledFromOutside(f"the allocation is over: {step.last_words()}")
    raise LaunchError(f"srun failed {_LAUNCHES} times: {step.last_words()}")


class StepRanks:
    """The ranks of one step: one srun, and a folder in which a shell leaves the end of each."""

    def __init__(self, folder: Path, world_size: int, srun: subprocess.Popen[bytes]) -> None:
        self._folder, self._size, self._srun = folder, world_size, srun
        self._silent_since: float | None = None

    def is_placed(self) -> bool:
        """Whether the first rank was started."""
        step = self._folder / _STEP
        return step.exists() and step.stat().st_size > 0

    def lives(self) -> bool:
        """Whether srun runs."""
        return self._srun.poll() is None

    def exits(self) -> dict[int, RankExit]:
        """See `Ranks`. A rank that left no file shares the exit code of srun."""
        files = [path for path in self._folder.iterdir() if path.name.isdigit()]
        ends = {int(path.name): end_of(path.read_text()) for path in files}
        code = self._srun.poll()
        if code is None or len(ends) == self._size:
            return ends
        self._silent_since = self._silent_since or time.monotonic()
        # a shared file system lists files late
        if time.monotonic() - self._silent_since < _LISTING_LAG_S:
            return ends
        # a whole step is killed for its memory, with the shells; never 0, which would mean success
        full = ran_out_of_memory(self._folder / _LOG)
        return (
            dict.fromkeys(range(self._size), RankExit(exit_code_from_shell(code) or 1, full)) | ends
        )

    def signal(self, number: int) -> None:
        """See `Ranks`. A kill is repeated while Slurm does not answer.

        Ranks that live on would disturb the next point, and outlive an srun that is killed.
        """
        end = time.monotonic() + (_SILENT_S if number == signal.SIGKILL else 0.0)
        while self.lives():
            if not self.is_placed():  # srun withdraws its request
                self._srun.terminate()
                return
            step = (self._folder / _STEP).read_text().strip()
            done = _ask_slurm("scancel", f"--signal={number}", step)
            if done.returncode == 0 or time.monotonic() >= end:
                return
            time.sleep(_SILENT_PAUSE_S)

    def kill(self) -> None:
        """See `Ranks`."""
        self.signal(signal.SIGKILL)
        try:
            self._srun.wait(_EXIT_S)
        except subprocess.TimeoutExpired:  # it may wait for a lost node
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._srun.pid, signal.SIGKILL)
            self._srun.wait()

    def last_words(self) -> str:
        """The last line that srun printed."""
        return last_line(self._folder / _LOG) or f"exit code {self._srun.poll()}"
