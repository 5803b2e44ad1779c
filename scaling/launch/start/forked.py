"""Start ranks: on fork servers if there are any.

Fork servers import torch and the engines once for all points. `scaling run` keeps one on this
machine while its Snakemake runs; points find its folder in `$SCALING_HOST`. In a Slurm allocation
the first point starts one on each node, as a step that lives as long as the allocation.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scaling.launch.fork_server import DIED, Lines, pid_space, runs
from scaling.launch.start import slurm, starter
from scaling.launch.start.environment import rank_environment
from scaling.launch.start.local import start_local
from scaling.launch.start.starter import Launch, PointOrProbe, Ranks
from scaling.record.rank_files import RankExit

FORK_SERVER = "SCALING_HOST"  # names the folder of this run's fork server
FORK_SERVERS_WANTED = "SCALING_HOSTS"  # 0: no fork servers
# by -c: the package imports this module, so that Python would warn of -m
AGENT = (sys.executable, "-c", "from scaling.launch.fork_server import main; main()")
RANK_COMMAND = [sys.executable, "-m", "scaling.train"]
_LOG = "agents.log"  # what the agents print, and their srun
_PID = "pid"  # file with the process that ends with the agents: the agent, or the srun of several
_ANSWER_S, _EXIT_S = 300.0, 20.0  # a fork server imports before it answers, a new one too
_OLD_S = 30 * 86400.0  # after which nobody needs the logs in a folder


class NoForkServer(Exception):
    """No fork server can start these ranks; the message says why."""


class ForkedRanks:
    """The ranks of one order."""

    def __init__(self, folder: Path, launch: Launch) -> None:
        """Order them from the agents of this folder, one per node, once these serve.

        Raises:
            NoForkServer: an agent has too few GPUs, for example as each rank may see only its own.
            OSError: an agent does not serve or answer, or its folder may be used by others.
        """
        self._folder, self._size, self._ends = folder, launch.world_size, dict[int, RankExit]()
        nodes = [folder / f"node{node}" for node in range(launch.nodes)]
        self._nodes, self._orders = [*map(Lines, nodes)], Lines(folder / "orders")
        self._order = uuid.uuid4().hex
        agents = [_wait_for(node, _ANSWER_S, lambda line: "gpus" in line) for node in nodes]
        fewest = min(agent["gpus"] for agent in agents)
        if launch.task.gpu != "cpu" and fewest < launch.per_node:
            raise NoForkServer(f"a fork server can use {fewest} of {launch.per_node} GPUs")
        sizes = {"WORLD_SIZE": f"{self._size}", "LOCAL_WORLD_SIZE": f"{launch.per_node}"}
        self._orders.add(
            order=self._order, arguments=launch.command[-2:], logs=str(launch.logs),
            per_node=launch.per_node, launcher=[pid_space(), os.getpid()],
            environment={**launch.environment, **sizes, "MASTER_ADDR": agents[0]["name"]},
        )  # fmt: skip
        with starter.all_or_none(self):
            for node in nodes:
                _wait_for(node, _ANSWER_S, lambda line: line.get("started") == self._order)

    def exits(self) -> dict[int, RankExit]:
        """See `Ranks`."""
        served = _serves(self._folder)
        full = not served and slurm.ran_out_of_memory(self._folder / _LOG)
        lost = RankExit(-signal.SIGKILL, full, lost_with="its fork server, which died")
        for line in (line for node in self._nodes for line in node.new()):
            if line.get("order") == self._order:
                end = RankExit(line["code"], line["out_of_memory"])
                self._ends.setdefault(line["rank"], lost if line["code"] == DIED else end)
        return ({} if served else dict.fromkeys(range(self._size), lost)) | self._ends

    def signal(self, number: int) -> None:
        """See `Ranks`."""
        with contextlib.suppress(OSError):  # the folder is gone, and all ranks with it
            self._orders.add(order=self._order, signal=number)

    def kill(self) -> None:
        """See `Ranks`."""
        self.signal(signal.SIGKILL)
        with contextlib.suppress(OSError):
            starter.wait_until(lambda: len(self.exits()) == self._size, _EXIT_S)


def _wait_for(node: Path, limit_s: float, wanted: Callable[[Any], bool]) -> Any:
    """The first line of an agent that is wanted."""
    lines, found = Lines(node), list[Any]()

    def look() -> list[Any]:
        found.extend(filter(wanted, lines.new()))
        return found

    if not starter.wait_until(look, limit_s, lambda: _serves(node.parent)):
        raise TimeoutError(f"no fork server answers; see {node.parent}")
    return found[0]


def _serves(folder: Path) -> bool:
    """Whether the agents of this folder run."""
    with contextlib.suppress(OSError, ValueError):
        return runs(int((folder / _PID).read_text()))
    return False


def _start_agents(
    folder: Path, nodes: int, command: Sequence[str], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start them in a session of their own: they outlive a point, and Ctrl-C is not for them."""
    for old in folder.parent.glob(".host*"):
        if time.time() - old.lstat().st_mtime > _OLD_S:
            shutil.rmtree(old, ignore_errors=True)
    for name in ("orders", *(f"node{node}" for node in range(nodes))):
        (folder / name).touch(mode=0o600)
    agents = starter.spawn(command, environment, folder / _LOG)
    (folder / _PID).write_text(str(agents.pid))
    return agents


@contextlib.contextmanager
def local_fork_server(point: PointOrProbe | None, logs: Path) -> Iterator[dict[str, str]]:
    """Keep a fork server for points like this one, if any; yields the environment for their jobs.

    Does not wait for it to start: the first point does. It ends with this block, or by itself once
    this process is gone and no point runs on it. All its ranks share the environment of its
    imports.
    """
    if point is None or os.environ.get(FORK_SERVERS_WANTED) == "0":
        yield {}
        return
    logs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=".host-", dir=logs.absolute(), ignore_cleanup_errors=True
    ) as folder:
        command = [*AGENT, folder, str(os.getpid())]
        agent = _start_agents(Path(folder), 1, command, rank_environment(point, os.environ))
        try:
            yield {FORK_SERVER: folder}
        finally:
            agent.terminate()
            try:
                agent.wait(_EXIT_S)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()


def start_on_fork_servers(launch: Launch) -> Ranks:
    """Have the fork servers of this allocation start the ranks; raises as `ForkedRanks` does.

    They are started if they are missing, or if they have ended, as with the steps of a failed
    point. Those that never began to serve are not tried again.
    """
    folder = launch.logs.parent / f".hosts-{slurm.allocation_name(launch.environment)}"
    if _serves(folder):
        with contextlib.suppress(OSError):  # they are about to end
            return ForkedRanks(folder, launch)
    if folder.exists() and not (folder / "node0").stat().st_size:
        raise NoForkServer(f"the fork servers did not start; see {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    command = [*slurm.fork_servers_command(launch, folder), *AGENT, str(folder)]
    step = _start_agents(folder, launch.nodes, command, launch.environment)
    try:
        return ForkedRanks(folder, launch)
    except BaseException:
        step.terminate()
        raise


def start_ranks(launch: Launch) -> Ranks:
    """Start ranks on fork servers if there are any, which know one program only.

    Else they start as a step of this Slurm allocation, or as processes of this machine.
    """
    environment, in_allocation = launch.environment, slurm.can_start_steps(launch.environment)
    folder, is_ours = environment.get(FORK_SERVER), list(launch.command[:3]) == RANK_COMMAND
    try:
        if is_ours and in_allocation and environment.get(FORK_SERVERS_WANTED) != "0":
            return start_on_fork_servers(launch)
        if is_ours and not in_allocation and folder is not None and launch.nodes == 1:
            return ForkedRanks(Path(folder), launch)
    except (NoForkServer, OSError) as why:
        print(f"ranks start from nothing: {why}", file=sys.stderr)  # noqa: T201 (the log)
    return slurm.start_step(launch) if in_allocation else start_local(launch)
