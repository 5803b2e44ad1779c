"""Import torch and the engines once, and fork ranks.

`python -m scaling.launch.fork_server.server FOLDER [PARENT]`

An allocation has one per node. Importing is most of a point's start, and takes minutes on a file
system that 256 nodes read at once. A forked rank is still a fresh process, and none of its effects
come back here. No GPU is touched before the fork, as CUDA does not survive one.

The server writes where it listens to FOLDER/node<n>.json (see `protocol`). Each connection is
served by a process of its own, so that a silent one, which anything on a network may open, blocks
no other.

With PARENT, a process id, it serves a run on this machine: it is unreachable from others, and ends
when that process is gone and no point runs.
"""

import contextlib
import faulthandler
import gc
import os
import secrets
import shutil
import signal
import socket
import sys
import time
import traceback
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

# set before torch is imported: if torch asked CUDA, it could not be used after a fork
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import torch

from scaling.cluster import node
from scaling.cluster.hardware import gpu_named
from scaling.launch.fork_server import protocol
from scaling.launch.fork_server.protocol import Answer, ForkServer, Order
from scaling.launch.start import slurm
from scaling.launch.start.rank_exits import oom_kills
from scaling.launch.start.starter import die_with_parent
from scaling.layout.engines import ENGINES, engine_module
from scaling.record.rank_files import RankFiles
from scaling.study.point import point_from_json
from scaling.train.program import run

for _name in ENGINES:
    engine_module(_name, "engine")

_POLL_S = 0.02
_ACCEPT_S = 1.0
_HANDSHAKE_S = 5  # limit for a connection to authenticate and give its order
_MOST_CONNECTIONS = 100  # at once; silent ones soon end
_EXIT_S = 5.0
_NO_GPU_FOR_FORKED = 255


class _Terminated(BaseException):
    """This process received SIGTERM."""


def main() -> NoReturn:
    """Listen until the allocation or the run ends."""
    folder, number = Path(sys.argv[1]), slurm.node_number(os.environ)
    parent = int(sys.argv[2]) if len(sys.argv) > 2 else None
    gpus = _count_gpus_after_fork()
    if gpus is None:
        sys.exit("a forked process cannot use the GPUs here; ranks start as fresh processes")
    gc.freeze()  # forked ranks share what was imported instead of copying it
    key = secrets.token_hex(32)
    name = "localhost" if parent else node.host_name(os.environ)
    serving: set[int] = set()
    signal.signal(signal.SIGTERM, _terminate)
    with socket.create_server((name, 0)) as server:
        server.settimeout(_ACCEPT_S)
        record = ForkServer(name=name, port=server.getsockname()[1], key=key, gpus=gpus)
        protocol.write_record(folder / f"node{number}.json", record)
        try:
            while parent is None or os.getppid() == parent or serving:
                _serve_next(server, key, serving)
        except _Terminated:
            _end_serving_processes(serving)
            sys.exit(128 + signal.SIGTERM)
    shutil.rmtree(folder, ignore_errors=True)  # the run was killed and cannot remove it
    sys.exit(0)


def _terminate(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Terminated


def _serve_next(server: socket.socket, key: str, serving: set[int]) -> None:
    """Serve the next connection, if one comes, and reap processes that have served theirs."""
    try:
        link, _ = server.accept()
    except TimeoutError:
        link = None
    serving -= {pid for pid in serving if os.waitpid(pid, os.WNOHANG)[0]}
    if link is None:
        return
    with link:
        if len(serving) >= _MOST_CONNECTIONS:
            return
        if pid := os.fork():
            serving.add(pid)
            return
        code = 1
        try:
            server.close()
            _serve(link, key)
            code = 0
        except (_Terminated, OSError):
            pass  # terminated, or the launcher is gone
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)


def _end_serving_processes(serving: set[int]) -> None:
    """Let them report that all ranks end, before this process does: with it Slurm ends the step."""
    for pid in serving:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + _EXIT_S
    while serving and time.monotonic() < end:
        serving -= {pid for pid in serving if os.waitpid(pid, os.WNOHANG)[0]}
        time.sleep(_POLL_S)


def _count_gpus_after_fork() -> int | None:
    """GPUs that a forked process can use; None if it cannot, as when an import has asked CUDA."""
    pid = os.fork()
    if pid:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return code if 0 <= code < _NO_GPU_FOR_FORKED else None
    code = _NO_GPU_FOR_FORKED
    try:
        count = torch.cuda.device_count()
        if count:
            torch.zeros(1, device="cuda")
        code = count
    except Exception:
        traceback.print_exc()
    os._exit(code)


def _serve(link: socket.socket, key: str) -> None:
    """Run the ranks of one order; a client without the key gets no answer."""
    signal.alarm(_HANDSHAKE_S)  # ends this process
    try:
        connection = protocol.accept(link, key)
        order = protocol.read_record(Path(connection.recv()), Order)
    except (AuthenticationError, AssertionError, EOFError):
        return
    signal.alarm(0)
    kills_before = oom_kills()
    ranks: dict[int, int] = {}
    try:
        for local, rank in enumerate(order.ranks):
            ranks[_fork(order, rank, local, connection)] = rank
        _watch(connection, ranks, kills_before)
    except _Terminated:
        connection.send(Answer(None, -signal.SIGTERM))
        raise
    finally:
        for pid in ranks:
            _signal(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _watch(connection: Connection, ranks: dict[int, int], kills_before: int) -> None:
    """Report each rank that ends, until none is left or the launcher is gone."""
    while ranks:
        for pid, rank in list(ranks.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del ranks[pid]
                _signal(pid, signal.SIGKILL)  # processes that it left in its session
                code = os.waitstatus_to_exitcode(status)
                struck = code == -signal.SIGKILL and oom_kills() > kills_before
                connection.send(Answer(rank, code, struck))
        if connection.poll(_POLL_S):
            try:
                number = connection.recv()
            except EOFError:
                return
            for pid in ranks:
                _signal(pid, number)


def _signal(session: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(session, number)


def _fork(order: Order, rank: int, local_rank: int, connection: Connection) -> int:
    pid = os.fork()
    if pid:
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)  # the child does it too, but may be signalled before
        return pid
    try:
        connection.close()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        point = point_from_json(Path(order.point).read_text(encoding="utf-8"))
        _become_rank(order, rank, local_rank, on_gpu=gpu_named(point.gpu).vendor == "nvidia")
        files = RankFiles(Path(order.directory))
        files.beat(rank, "forked")
        run(point, files, node.rank_id_of(os.environ))
    except BaseException:
        traceback.print_exc()  # why a rank never began
    finally:
        os._exit(1)


def _become_rank(order: Order, rank: int, local_rank: int, *, on_gpu: bool) -> None:
    """Make the forked process like a rank that started as a fresh process."""
    with contextlib.suppress(PermissionError):
        os.setpgid(0, 0)
    die_with_parent()
    # variables about this node and its devices outrank those of the node the order came from
    kept = {k: v for k, v in os.environ.items() if k.startswith(slurm.OF_THIS_NODE)}
    os.environ.clear()
    os.environ.update(order.environment)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(local_rank),
        WORLD_SIZE=str(order.world_size),
        LOCAL_WORLD_SIZE=str(len(order.ranks)),
        MASTER_ADDR=order.master,
    )
    os.environ.update(kept)
    with (Path(order.logs) / f"rank{rank}.log").open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    node.bind_rank(os.environ, on_gpu=on_gpu)
    if threads := os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))  # OpenMP read its environment when torch was imported
    faulthandler.register(signal.SIGUSR1, all_threads=True)


if __name__ == "__main__":
    main()
