"""Choose how to start ranks here."""

import sys
from collections.abc import Mapping

from scaling.launch.start import slurm
from scaling.launch.start.forked import (
    FORK_SERVER,
    FORK_SERVERS_WANTED,
    NoForkServer,
    start_on_fork_servers,
    start_on_local_fork_server,
)
from scaling.launch.start.local import start_local
from scaling.launch.start.starter import Launch, Ranks, Starter


def choose_starter(environment: Mapping[str, str]) -> Starter:
    """Choose how to start ranks here.

    Inside a Slurm allocation, as a step of it. Otherwise as processes of this machine, by the run's
    fork server if there is one.
    """
    if slurm.can_start_steps(environment):
        return start_in_allocation
    return start_here if FORK_SERVER in environment else start_local


def start_in_allocation(launch: Launch) -> Ranks:
    """Start ranks on the allocation's fork servers, unless `$SCALING_HOSTS=0`, or as a step."""
    wanted = launch.environment.get(FORK_SERVERS_WANTED) != "0"
    return (wanted and _forked(start_on_fork_servers, launch)) or slurm.start_step(launch)


def start_here(launch: Launch) -> Ranks:
    """Start ranks on this run's fork server, or as fresh processes."""
    return _forked(start_on_local_fork_server, launch) or start_local(launch)


def _forked(fork: Starter, launch: Launch) -> Ranks | None:
    """The ranks if fork servers can start them, else None: fork servers know one program only."""
    if list(launch.command[:3]) != [sys.executable, "-m", "scaling.train"]:
        return None
    try:
        return fork(launch)
    except (NoForkServer, OSError) as why:
        print(f"ranks start from nothing: {why}", file=sys.stderr)  # noqa: T201 (the log)
        return None
