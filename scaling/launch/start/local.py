"""Start ranks as processes of this machine."""

import os
import signal
import subprocess

from scaling.launch.start.rank_exits import oom_kills
from scaling.launch.start.slurm import job_id
from scaling.launch.start.starter import Launch, LaunchError, all_or_none, die_with_parent, spawn
from scaling.record.rank_files import RankExit


def start_local(launch: Launch) -> "LocalRanks":
    """Start every rank on this machine, each as leader of its own session.

    Raises:
        LaunchError: the point needs more than one node, or a process could not be started.
    """
    if launch.nodes > 1:
        job = job_id(launch.environment)
        why = "these ranks are started on one machine" if job is None else f"job {job} has no srun"
        raise LaunchError(
            f"world_size={launch.world_size} needs more than one node of {launch.per_node} GPUs, "
            f"and {why}"
        )
    ranks = LocalRanks()
    with all_or_none(ranks):
        for rank in range(launch.world_size):
            try:
                ranks.start(launch, rank)
            except OSError as error:
                raise LaunchError(f"rank {rank} could not be started: {error}") from error
    return ranks


def rank_variables(rank: int, world_size: int) -> dict[str, str]:
    """Environment variables that tell a process on this machine which rank it is."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
    }


class LocalRanks:
    """Child processes of this one, none reaped before all are killed.

    An unreaped child keeps its pid. That makes it safe to kill its process group late, to end what
    it left behind: no other program can have got the pid.
    """

    def __init__(self) -> None:
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._kills_before = oom_kills()

    def start(self, launch: Launch, rank: int, **variables: str) -> None:
        """Start one rank, with `variables` added to its environment.

        Raises:
            OSError: the program is missing, or no process could be created.
        """
        variables = rank_variables(rank, launch.world_size) | variables
        environment = {**launch.environment, **variables}
        log = launch.logs / f"rank{rank}.log"
        self._children[rank] = spawn(launch.command, environment, log, preexec_fn=die_with_parent)

    def exits(self) -> dict[int, RankExit]:
        """See `Ranks`."""
        codes = {rank: _exit_code(child.pid) for rank, child in self._children.items()}
        return {
            rank: RankExit(code, code == -signal.SIGKILL and oom_kills() > self._kills_before)
            for rank, code in codes.items()
            if code is not None
        }

    def signal(self, number: int) -> None:
        """See `Ranks`."""
        for child in self._children.values():
            os.kill(child.pid, number)

    def kill(self) -> None:
        """Kill the ranks' process groups and reap the ranks; a second call does nothing."""
        for child in self._children.values():
            os.killpg(child.pid, signal.SIGKILL)
        while self._children:
            _, child = self._children.popitem()
            child.wait()


def _exit_code(pid: int) -> int | None:
    """The exit code of a child, None while it runs; does not reap it."""
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
