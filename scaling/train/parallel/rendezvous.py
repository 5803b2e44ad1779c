"""Rendezvous: ranks meet at a store on rank 0's machine and form one process group of all."""

import datetime
import time

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined] # exported at run time only

from scaling.cluster.node import RankId
from scaling.record.rank_files import RankFiles

# From one look for rank 0's address to the next; thousands of ranks share the file system.
_FIRST_POLL_S, _LONGEST_POLL_S = 0.02, 1.0


def rendezvous(
    rank_id: RankId, files: RankFiles, device: torch.device, *, timeout_s: float
) -> TCPStore:
    """Make torch's process group of all ranks and return its store.

    Rank 0 listens on a port that the kernel picks and leaves its number in the run's folder. No
    port is chosen before it is bound, so two points on one machine cannot meet.

    The caller has set its device. The group is not bound to it (`device_id`), because torch would
    then split every later group off this one. That is a collective of all ranks for each of
    hundreds of groups. As it is, NCCL connects a group at its first use, and only the group's ranks
    take part.
    """
    timeout = datetime.timedelta(seconds=timeout_s)
    store = _store(rank_id, files, timeout)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=rank_id.rank,
        world_size=rank_id.world_size,
        timeout=timeout,
    )
    return store


def _store(rank_id: RankId, files: RankFiles, timeout: datetime.timedelta) -> TCPStore:
    if rank_id.rank == 0:
        store = TCPStore(
            rank_id.master,
            0,
            rank_id.world_size,
            is_master=True,
            timeout=timeout,
            wait_for_workers=False,
        )
        files.publish_store(rank_id.master, store.port)
        return store
    deadline = time.monotonic() + timeout.total_seconds()
    pause_s = _FIRST_POLL_S
    while (address := files.store()) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank 0 published no store within {timeout}")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_POLL_S)
    return TCPStore(*address, rank_id.world_size, is_master=False, timeout=timeout)
