"""Fork servers of a Slurm allocation, one on each node.

The first point starts them as a step of their own, which lives as long as the allocation; the
points after it find them. Where they cannot be had, ranks start from nothing.
"""

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from scaling.launch.fork_server import protocol
from scaling.launch.fork_server.client import NoForkServer, order_ranks
from scaling.launch.fork_server.protocol import ForkServer
from scaling.launch.start import slurm
from scaling.launch.start.starter import Placement, Ranks, spawn

_POLL_S = 0.02
_IMPORT_LIMIT_S = 300.0
_OLD_S = 30 * 86400.0  # nobody looks at the logs in a folder any more


def start_on_fork_servers(
    command: Sequence[str], point: Placement, environment: Mapping[str, str], logs: Path
) -> Ranks:
    """Have the fork servers of this allocation start the ranks, in block order.

    Args:
        command: of a rank that starts from nothing; its last two words are the point and the
            folder for the ranks' files.
        point: says how many ranks on how many nodes.
        environment: of the ranks.
        logs: rank r writes to logs/rank<r>.log.

    Raises:
        NoForkServer: they could not be started, or one of them does not answer.
    """
    per_node = min(point.world_size, point.gpus_per_node)
    nodes = -(-point.world_size // per_node)
    job = slurm.job_id(environment)
    place = logs.parent / f".hosts-{job}-{slurm.restart_count(environment)}"
    records = [place / f"node{node}.json" for node in range(nodes)]
    for last_try in (False, True):
        try:
            servers = _servers(records, per_node, environment, place)
            return order_ranks(servers, command, point, environment, logs)
        except OSError as error:
            if last_try:
                raise NoForkServer(f"a fork server does not answer: {error}") from error
            # ended with the steps of a point that failed: start them again
            for record in place.glob("node*.json"):
                record.unlink()
    raise AssertionError


def _servers(
    records: Sequence[Path], per_node: int, environment: Mapping[str, str], place: Path
) -> list[ForkServer]:
    """Where the fork servers listen; started if there are none yet."""
    failed = place / "failed"
    if failed.exists():
        raise NoForkServer(failed.read_text())
    if not _all_there(records):
        _remove_old(place)
        place.mkdir(parents=True, exist_ok=True)
        if not _start(records, per_node, environment, place):
            failed.write_text(f"hosts did not start; see {place}")
            raise NoForkServer(failed.read_text())
    return [protocol.read(record, ForkServer) for record in records]


def _start(
    records: Sequence[Path], per_node: int, environment: Mapping[str, str], place: Path
) -> bool:
    """Whether all of them listen in the end."""
    srun = slurm.fork_servers_command(len(records), per_node, environment, place)
    command = [*srun, *protocol.SERVER_COMMAND, str(place)]
    # in a session of its own: it outlives this point
    step = spawn(command, {**os.environ, **environment}, place / "srun.log")
    end = time.monotonic() + _IMPORT_LIMIT_S
    while not _all_there(records):
        if step.poll() is not None or time.monotonic() > end:
            step.terminate()
            return False
        time.sleep(_POLL_S)
    return True


def _all_there(records: Sequence[Path]) -> bool:
    return all(record.exists() for record in records)


def _remove_old(place: Path) -> None:
    """Remove the folders of earlier starts of this job, and those that are old."""
    job = place.name.rpartition("-")[0]
    for other in place.parent.glob(".hosts-*"):
        earlier = other.name.rpartition("-")[0] == job and other != place
        if earlier or time.time() - other.lstat().st_mtime > _OLD_S:
            shutil.rmtree(other, ignore_errors=True)
