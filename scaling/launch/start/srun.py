"""Ranks as one step of a Slurm allocation: srun places them, a few lines of shell stand around each."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from scaling.launch.fork_server.local import (
    FORK_SERVER,
    FORK_SERVERS_WANTED,
    start_on_local_fork_server,
)
from scaling.launch.fork_server.slurm import NoForkServer, can_fork, start_on_fork_servers
from scaling.launch.start.local import start_local
from scaling.launch.start.rank_exits import AFTER, BEFORE, RankExits, last_line, signed
from scaling.launch.start.starter import End, LaunchError, Placement, Ranks, Starter
from scaling.launch.start.torchrun import nodes_of, start_by_torchrun

_LAUNCHES = 3  # a step that Slurm fails to create is tried again
_LAUNCH_PAUSE_S = 5.0
_LAUNCH_LIMIT_S = 300.0
_POLL_S = 0.05

# $1: where to say how the rank ended; then its command. Slurm sends every signal to the shell too,
# which stays to say what became of its rank: USR1 asks ranks for their stacks, and the others end
# those that set no handler.
_RANK_SHELL = f"""\
trap '' USR1
trap : TERM INT HUP USR2
export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID MASTER_ADDR=$SLURMD_NODENAME
said=$1
shift
[ "$RANK" != 0 ] || echo "$SLURM_JOB_ID.$SLURM_STEP_ID" > "$said/step"
{BEFORE}
"$@"
code=$?
{AFTER}exit $code
"""


def starter(environment: Mapping[str, str]) -> Starter:
    """How ranks are started here.

    A step of the Slurm allocation this runs in; without srun a torchrun on each node of the job,
    where there are several; else processes of this machine, forked by the host of this run if it
    keeps one.
    """
    if "SLURM_JOB_ID" in environment and shutil.which("srun") is not None:
        return start_in_allocation
    if len(nodes_of(environment)) > 1:
        return start_by_torchrun
    return start_on_local_fork_server if FORK_SERVER in environment else start_local


def start_in_allocation(
    command: Sequence[str], point: Placement, environment: Mapping[str, str], logs: Path
) -> Ranks:
    """Have the allocation's hosts fork the ranks, or start them as a step where there are none.

    Hosts know one program only; `$SCALING_HOSTS=0` says that ranks should start from nothing.

    Raises:
        LaunchError: no step could be created.
    """
    if can_fork(command) and environment.get(FORK_SERVERS_WANTED) != "0":
        try:
            return start_on_fork_servers(command, point, environment, logs)
        except NoForkServer as why:
            print(f"ranks start from nothing: {why}", file=sys.stderr)  # noqa: T201 (the log)
    return start_step(command, point, environment, logs)


def srun_command(point: Placement, environment: Mapping[str, str], logs: Path) -> list[str]:
    """`srun` and its options, for ranks in block order: neighbours in rank share a node.

    Args:
        point: says how many ranks on how many nodes.
        environment: of the allocation: `$SRUN_ARGS` are more options, such as a container's.
        logs: rank r writes to logs/rank<r>.log.
    """
    world_size = point.world_size
    per_node = min(world_size, point.gpus_per_node)
    command = [
        "srun",
        f"--nodes={-(-world_size // per_node)}",
        f"--ntasks={world_size}",
        f"--ntasks-per-node={per_node}",
        "--distribution=block",
        "--kill-on-bad-exit=0",  # the watcher ends the others, once they have said what they saw
        "--unbuffered",
        "--input=none",
        "--export=ALL",  # a site may have sbatch hand on nothing, and steps take after it
        # all that the allocation has, also when this runs inside another step
        "--overlap",
        "--mem=0",
        f"--output={logs}/rank%t.log",
    ]
    cpus = environment.get("SLURM_CPUS_PER_TASK")  # which srun does not take from sbatch
    if cpus:
        command.append(f"--cpus-per-task={cpus}")
    return [*command, *shlex.split(environment.get("SRUN_ARGS", ""))]


def start_step(
    command: Sequence[str], point: Placement, environment: Mapping[str, str], logs: Path
) -> Ranks:
    """Start all ranks as one step of this allocation, and wait until the first of them runs.

    Raises:
        LaunchError: Slurm could not create the step, several times; its text is what srun said.
    """
    world_size = point.world_size
    rank_environment = {
        **environment,
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(min(world_size, point.gpus_per_node)),
    }
    srun = srun_command(point, environment, logs)
    for attempt in range(_LAUNCHES):
        if attempt:
            time.sleep(_LAUNCH_PAUSE_S)
        said = Path(tempfile.mkdtemp(prefix=".run-step-", dir=logs))
        step = StepRanks(
            [*srun, "bash", "-c", _RANK_SHELL, "rank", str(said), *command], rank_environment, said
        )
        try:
            started = step.wait_for_start(_LAUNCH_LIMIT_S)
        except BaseException:
            step.kill()
            raise
        if started:
            return step
        step.kill()
    raise LaunchError(f"srun failed {_LAUNCHES} times: {step.last_words()}")


class StepRanks:
    """The ranks of one step, seen through srun and the files their shells leave."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], said: Path) -> None:
        self._said = said
        self._world_size = int(environment["WORLD_SIZE"])
        self._exits = RankExits(said)
        with (said / "srun.log").open("wb") as log:
            self._srun = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_for_start(self, limit_s: float) -> bool:
        """Whether the first rank runs, or has run, within so many seconds."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            if self._step() is not None:
                return True
            if self._srun.poll() is not None:
                time.sleep(_POLL_S)
                return self._step() is not None
            time.sleep(_POLL_S)
        return False

    def exits(self) -> dict[int, End]:
        """See `Ranks`. A rank that could not say how it ended shares srun's own exit code."""
        rest: dict[int, End] = {}
        if (code := self._srun.poll()) is not None:
            rest = self._exits.without_a_word(range(self._world_size), End(signed(code)))
        return {**rest, **self._exits.ends()}

    def dump_stacks(self) -> None:
        """See `Ranks`."""
        self._signal("USR1")

    def kill(self) -> None:
        """See `Ranks`."""
        if self._srun.poll() is None:
            self._signal("KILL")
            try:
                self._srun.wait(timeout=20)
            except subprocess.TimeoutExpired:
                # it may wait for a node that is gone
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._srun.pid, signal.SIGKILL)
                self._srun.wait()

    def last_words(self) -> str:
        """The last line that srun printed."""
        return last_line(self._said / "srun.log") or f"exit code {self._srun.poll()}"

    def _step(self) -> str | None:
        try:
            return (self._said / "step").read_text().strip() or None
        except FileNotFoundError:
            return None

    def _signal(self, name: str) -> None:
        step = self._step()
        if step is None:  # not placed yet: srun gives its request up
            self._srun.terminate()
            return
        subprocess.run(
            ["scancel", f"--signal={name}", step],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60,
            check=False,
        )
