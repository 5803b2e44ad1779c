"""How ranks are started here."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from scaling.launch.fork_server.client import NoForkServer, can_fork
from scaling.launch.fork_server.local import (
    FORK_SERVER,
    FORK_SERVERS_WANTED,
    start_on_local_fork_server,
)
from scaling.launch.fork_server.slurm import start_on_fork_servers
from scaling.launch.start import slurm
from scaling.launch.start.local import start_local
from scaling.launch.start.srun import start_step
from scaling.launch.start.starter import Placement, Ranks, Starter
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


def start_in_allocation(
    command: Sequence[str], point: Placement, environment: Mapping[str, str], logs: Path
) -> Ranks:
    """Have the allocation's fork servers start the ranks, or a step where there are none.

    A fork server knows one program only; `$SCALING_HOSTS=0` says that ranks should start from
    nothing.

    Raises:
        LaunchError: no step could be created.
    """
    wanted = environment.get(FORK_SERVERS_WANTED) != "0"
    forked = _forked(start_on_fork_servers, command, point, environment, logs) if wanted else None
    return forked or start_step(command, point, environment, logs)


def start_here(
    command: Sequence[str], point: Placement, environment: Mapping[str, str], logs: Path
) -> Ranks:
    """Have the fork server of this run start the ranks, or start them from nothing.

    Raises:
        LaunchError: they could not be started that way either.
    """
    forked = _forked(start_on_local_fork_server, command, point, environment, logs)
    return forked or start_local(command, point, environment, logs)


def _forked(
    fork: Starter,
    command: Sequence[str],
    point: Placement,
    environment: Mapping[str, str],
    logs: Path,
) -> Ranks | None:
    """The ranks that fork servers start, None where these cannot."""
    if not can_fork(command):
        return None
    try:
        return fork(command, point, environment, logs)
    except (NoForkServer, OSError) as why:
        print(f"ranks start from nothing: {why}", file=sys.stderr)  # noqa: T201 (the log)
        return None
