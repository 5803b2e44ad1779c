"""Fork servers of a Slurm allocation, one on each node.

The first point starts them as a step of their own, which lives as long as the allocation; the
points after it find them. Where they cannot be had, ranks start from nothing.
"""

import os
import shutil
import time
from pathlib import Path

from scaling.launch.fork_server import protocol
from scaling.launch.fork_server.client import NoForkServer, order_ranks
from scaling.launch.fork_server.protocol import ForkServer
from scaling.launch.start import slurm
from scaling.launch.start.starter import Launch, Ranks, spawn, wait_until

_IMPORT_LIMIT_S = 300.0
_OLD_S = 30 * 86400.0  # nobody looks at the logs in a folder any more


def start_on_fork_servers(launch: Launch) -> Ranks:
    """Have the fork servers of this allocation start the ranks.

    Raises:
        NoForkServer: they could not be started, or one of them does not answer.
    """
    job, restarts = slurm.job_id(launch.environment), slurm.restart_count(launch.environment)
    place = launch.logs.parent / f".hosts-{job}-{restarts}"
    try:
        return order_ranks(_servers(launch, place), launch)
    except OSError:  # ended with the steps of a point that failed: start them again
        for record in place.glob("node*.json"):
            record.unlink()
    try:
        return order_ranks(_servers(launch, place), launch)
    except OSError as error:
        raise NoForkServer(f"a fork server does not answer: {error}") from error


def _servers(launch: Launch, place: Path) -> list[ForkServer]:
    """Where the fork servers listen; started if there are none yet."""
    failed = place / "failed"
    if failed.exists():
        raise NoForkServer(failed.read_text())
    records = [place / f"node{node}.json" for node in range(launch.nodes)]

    def all_there() -> bool:
        return all(record.exists() for record in records)

    if not all_there():
        _remove_old(place)
        place.mkdir(parents=True, exist_ok=True)
        srun = slurm.fork_servers_command(launch, place)
        # in a session of its own: it outlives this point
        step = spawn(
            [*srun, *protocol.SERVER_COMMAND, str(place)],
            {**os.environ, **launch.environment},
            place / "srun.log",
        )
        if not wait_until(all_there, _IMPORT_LIMIT_S, alive=lambda: step.poll() is None):
            step.terminate()
            failed.write_text(f"hosts did not start; see {place}")
            raise NoForkServer(failed.read_text())
    return [protocol.read(record, ForkServer) for record in records]


def _remove_old(place: Path) -> None:
    """Remove the folders of earlier starts of this job, and those that are old."""
    job = place.name.rpartition("-")[0]
    for other in place.parent.glob(".hosts-*"):
        earlier = other.name.rpartition("-")[0] == job and other != place
        if earlier or time.time() - other.lstat().st_mtime > _OLD_S:
            shutil.rmtree(other, ignore_errors=True)
