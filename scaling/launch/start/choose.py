"""How ranks are started here."""

import sys
from collections.abc import Mapping

from scaling.launch.fork_server.client import (
    FORK_SERVER,
    FORK_SERVERS_WANTED,
    NoForkServer,
    start_on_fork_servers,
    start_on_local_fork_server,
)
from scaling.launch.start import slurm
from scaling.launch.start.local import start_local
from scaling.launch.start.starter import Launch, Ranks, Starter
from scaling.launch.start.torchrun import nodes_of, start_by_torchrun


def starter(environment: Mapping[str, str]) -> Starter:
    """How ranks are started here.

    A step of the Slurm allocation this runs in; without srun a torchrun on each node of the job,
    where there are several; else processes of this machine, forked by the fork server of this run
    if it keeps one.
    """
    if slurm.can_start_steps(environment):
        return start_in_allocation
    if len(nodes_of(environment)) > 1:
        return start_by_torchrun
    return start_here if FORK_SERVER in environment else start_local


def start_in_allocation(launch: Launch) -> Ranks:
    """Have the allocation's fork servers start the ranks, or a step where there are none.

    `$SCALING_HOSTS=0` says that ranks should start from nothing.
    """
    wanted = launch.environment.get(FORK_SERVERS_WANTED) != "0"
    return (wanted and _forked(start_on_fork_servers, launch)) or slurm.start_step(launch)


def start_here(launch: Launch) -> Ranks:
    """Have the fork server of this run start the ranks, or start them from nothing."""
    return _forked(start_on_local_fork_server, launch) or start_local(launch)


def _forked(fork: Starter, launch: Launch) -> Ranks | None:
    """The ranks that fork servers start, None where these, who know one program, cannot."""
    if list(launch.command[:3]) != [sys.executable, "-m", "scaling.train"]:
        return None
    try:
        return fork(launch)
    except (NoForkServer, OSError) as why:
        print(f"ranks start from nothing: {why}", file=sys.stderr)  # noqa: T201 (the log)
        return None
