"""`python -m scaling.train.host FOLDER [PARENT]`: imports torch and DeepSpeed once, forks ranks.

One per node of an allocation. Importing is most of a point's start, and minutes on a file system
that 256 nodes read at once. A forked rank is a fresh process all the same, and none of what it does
comes back here. No GPU is touched before the fork: CUDA does not survive one.

It says in FOLDER/node<n>.json where it listens. An order is one line of JSON, the answer one line
for each rank that has ended. Who gave the order may say `dump` or `kill`; if it goes, its ranks go.

With PARENT, a process id, it serves a run on this machine: it cannot be reached from others, and
ends when that process is gone and no point runs.
"""

import contextlib
import ctypes
import faulthandler
import gc
import hmac
import json
import os
import secrets
import select
import signal
import socket
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

# before torch: it must not ask CUDA, which could not be used after a fork
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401 (the engine imports it late)
import torch

from scaling.grid import point_from_json
from scaling.meeting import Seat
from scaling.rank_files import RankFiles
from scaling.train.program import run

_ASK_EVERY_S = 0.02
_PARENT_EVERY_S = 1.0
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Ranks of one point to start on this node; `ranks` counts over all nodes."""

    token: str
    point: str  # path of its JSON file
    directory: str  # for the ranks' files
    logs: str
    ranks: list[int]
    world_size: int
    master: str
    environment: dict[str, str]


def main() -> NoReturn:
    """Listen until the allocation, or the run, ends."""
    folder, node = Path(sys.argv[1]), int(os.environ.get("SLURM_NODEID", "0"))
    parent = int(sys.argv[2]) if len(sys.argv) > 2 else None
    if not _forked_ranks_reach_the_gpus():
        sys.exit("a forked process cannot use the GPUs here; ranks must start from nothing")
    gc.freeze()  # forked ranks share what was imported instead of copying it
    token = secrets.token_hex(16)
    name = "localhost" if parent else os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    with socket.create_server((name, 0)) as server:
        said = {"host": name, "port": server.getsockname()[1], "token": token}
        part = folder / f".node{node}.part"
        part.touch(mode=0o600)
        part.write_text(json.dumps(said))
        part.replace(folder / f"node{node}.json")
        server.settimeout(None if parent is None else _PARENT_EVERY_S)
        while True:
            try:
                connection, _ = server.accept()
            except TimeoutError:
                if os.getppid() != parent:
                    sys.exit(0)
                continue
            with connection:
                _serve(connection, server, token)


def _forked_ranks_reach_the_gpus() -> bool:
    """Try it: something that was imported may have asked CUDA, and then no child can."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1] == 0
    code = 1
    try:
        if torch.cuda.device_count():
            torch.zeros(1, device="cuda")
        code = 0
    except Exception:
        traceback.print_exc()
    os._exit(code)


def _serve(connection: socket.socket, server: socket.socket, token: str) -> None:
    """Run the ranks of one order; whoever does not know the token is not answered."""
    with connection.makefile("r", encoding="utf-8") as lines:
        first = lines.readline()
        try:
            order = Order(**json.loads(first))
        except (ValueError, TypeError):
            return
        if not hmac.compare_digest(order.token, token):
            return
        ranks = {
            _fork(order, rank, local, connection, server): rank
            for local, rank in enumerate(order.ranks)
        }
        try:
            _watch(connection, ranks)
        finally:
            _kill(ranks)


def _watch(connection: socket.socket, ranks: dict[int, int]) -> None:
    """Tell of each rank that ends, until none is left or nobody listens."""
    while ranks:
        for pid, rank in list(ranks.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del ranks[pid]
                _signal(pid, signal.SIGKILL)  # what it left in its session
                answer = {"rank": rank, "code": os.waitstatus_to_exitcode(status)}
                connection.sendall((json.dumps(answer) + "\n").encode())
        if select.select([connection], [], [], _ASK_EVERY_S)[0]:
            asked = connection.recv(4096).decode()
            if not asked:
                return
            if "dump" in asked:
                for pid in ranks:
                    _signal(pid, signal.SIGUSR1)
            if "kill" in asked:
                for pid in ranks:
                    _signal(pid, signal.SIGKILL)


def _kill(ranks: dict[int, int]) -> None:
    for pid in ranks:
        _signal(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _signal(session: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(session, number)


def _fork(
    order: Order, rank: int, local_rank: int, connection: socket.socket, server: socket.socket
) -> int:
    pid = os.fork()
    if pid:
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)  # here too: it may be signalled before it gets so far itself
        return pid
    try:
        server.close()
        connection.close()
        _sit_down(order, rank, local_rank)
        seat = Seat(
            rank=rank,
            local_rank=local_rank,
            world_size=order.world_size,
            master=order.master,
        )
        files = RankFiles(Path(order.directory))
        files.beat(rank, "forked")
        run(point_from_json(Path(order.point).read_text(encoding="utf-8")), files, seat)
    finally:
        os._exit(1)


def _sit_down(order: Order, rank: int, local_rank: int) -> None:
    """Make the forked process what a rank started from nothing would be."""
    with contextlib.suppress(PermissionError):
        os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    environment: dict[str, Any] = {
        **order.environment,
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(order.world_size),
        "LOCAL_WORLD_SIZE": str(len(order.ranks)),
        "MASTER_ADDR": order.master,
    }
    # what Slurm says of this node and its devices holds, whatever it says where the order came from
    kept = {k: v for k, v in os.environ.items() if k.startswith(("SLURM", "CUDA_VISIBLE", "ROCR"))}
    os.environ.clear()
    os.environ.update({**environment, **kept})
    threads = environment.get("OMP_NUM_THREADS")
    if threads is not None:  # OpenMP read its environment when torch was imported
        torch.set_num_threads(int(threads))
    with (Path(order.logs) / f"rank{rank}.log").open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    faulthandler.register(signal.SIGUSR1, all_threads=True)


if __name__ == "__main__":
    main()
