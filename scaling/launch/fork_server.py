"""Fork ranks from a process that has imported torch and the engines once for all points.

`main` is the agent of one node, with FOLDER and perhaps PARENT as arguments; `start/forked.py`
starts it and sends it orders. FOLDER, which only its owner can use, holds

    orders     lines of launchers: ranks to start, or a signal for those of an order
    node<n>    lines of the agent of node n: that it serves, what it started, how ranks ended

Lines of JSON are appended to one file, as a shared file system shows new files late.
"""

import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

import psutil

from scaling.cluster.node import host_name
from scaling.launch.start import slurm
from scaling.launch.start.rank_exits import oom_kills
from scaling.launch.start.starter import die_with_parent
from scaling.layout.engines import ENGINES

DIED = 255  # exit code of a rank whose fork server has died
_PROGRAM = "scaling.train.__main__"
_NO_GPU = 254  # exit code: a forked process cannot use the GPUs
# For the imports: torch must not ask CUDA, and no thread may start; neither survives a fork.
_IMPORTING = {
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1", "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}  # fmt: skip
_FORKED = multiprocessing.get_context("forkserver")  # it has one thread


class Lines:
    """A file of JSON lines, in a folder that only this user can use; else an OSError."""

    def __init__(self, path: Path) -> None:
        self._path, self._read_bytes = path, 0

    def add(self, **record: Any) -> None:
        """Append a line."""
        with self._open("ab") as file:
            file.write(json.dumps(record).encode() + b"\n")

    def new(self) -> list[dict[str, Any]]:
        """The lines since the last call."""
        with self._open("rb") as file:
            file.seek(self._read_bytes)
            whole, end, _ = file.read().rpartition(b"\n")
        self._read_bytes += len(whole + end)
        return [json.loads(line) for line in whole.splitlines()]

    def _open(self, mode: str) -> Any:
        folder = self._path.parent.stat()
        if folder.st_uid != os.getuid() or folder.st_mode & 0o077:  # who writes here runs code
            raise PermissionError(f"{self._path.parent} is not this user's alone")
        return self._path.open(mode)


def runs(pid: int) -> bool:
    """Whether a process of this machine runs."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def pid_space() -> str:
    """Names the processes among which ids are unique."""
    return f"{os.uname().nodename} {Path('/proc/self/ns/pid').readlink()}"


def main() -> None:
    """Serve until the allocation ends, or until PARENT and all launchers have ended.

    All agents of an allocation together read the orders about 500 times a second.
    """
    folder, parent = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None
    os.environ.update(_IMPORTING)
    engines = [f"{package}.engine" for package in ENGINES.values()]
    _FORKED.set_forkserver_preload([__name__, _PROGRAM, "scaling.train.program", *engines])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the fork server inherits this
    counting = _FORKED.Process(target=_count_gpus)
    counting.start()
    counting.join()
    if counting.exitcode in (_NO_GPU, DIED):
        sys.exit("a forked process cannot use the GPUs here; ranks start as fresh processes")
    told: list[int] = []  # to end; noted, so that no rank and no line of one is lost half-way
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    node, nodes = slurm.place_in_step(os.environ)
    agent = _Agent(folder, node)
    name = "localhost" if parent else host_name(os.environ)
    agent.said.add(name=name, gpus=counting.exitcode)
    try:
        # a launcher may not have read yet how its ranks ended
        while not told and (
            parent is None or os.getppid() == parent or agent.ranks or agent.launchers
        ):
            agent.serve()
            time.sleep(0.02 + nodes / 500)
    finally:
        agent.end()
    if told:
        sys.exit(128 + signal.SIGTERM)
    shutil.rmtree(folder, ignore_errors=True)  # the run was killed and cannot remove it


class _Agent:
    """The ranks that run on one node, by order and number."""

    def __init__(self, folder: Path, node: int) -> None:
        self._node, self._kills_before = node, 0
        self._orders, self.said = Lines(folder / "orders"), Lines(folder / f"node{node}")
        self.ranks: dict[tuple[str, int], BaseProcess] = {}
        self.launchers: dict[str, list[Any]] = {}  # by order

    def serve(self) -> None:
        """Start and signal ranks as ordered since the last call, and report how ranks ended."""
        for line in self._orders.new():
            if "signal" not in line:
                self._start(line)
                continue
            for (order, _), process in self.ranks.items():
                if order == line["order"]:
                    _kill(process, line["signal"])
        for (order, rank), process in list(self.ranks.items()):
            if (code := process.exitcode) is not None:
                del self.ranks[order, rank]
                _kill(process, signal.SIGKILL)  # what it has left in its group
                full = code == -signal.SIGKILL and oom_kills() > self._kills_before
                self.said.add(order=order, rank=rank, code=code, out_of_memory=full)
        running = {order for order, _ in self.ranks}
        for order, (space, pid) in list(self.launchers.items()):
            if space != pid_space() or runs(pid):
                continue
            if order in running:
                self._orders.add(order=order, signal=signal.SIGKILL)  # to all agents
            else:
                del self.launchers[order]

    def _start(self, order: dict[str, Any]) -> None:
        name = order["order"]
        self.launchers[name] = order["launcher"]
        for local in range(order["per_node"]):
            rank = self._node * order["per_node"] + local
            process = _FORKED.Process(target=_run_rank, args=(order, rank, local))
            process.start()
            self.ranks[name, rank] = process
        self.said.add(started=name)
        self._kills_before = oom_kills()

    def end(self) -> None:
        """Kill the ranks, and report them as ended from outside."""
        for (order, rank), process in self.ranks.items():
            self.said.add(order=order, rank=rank, code=-signal.SIGTERM, out_of_memory=False)
            _kill(process, signal.SIGKILL)


def _kill(process: BaseProcess, number: int) -> None:
    """Signal a rank, and its group, which may not be there yet or outlive it."""
    for send in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError):
            send(process.pid or 0, number)


def _count_gpus() -> NoReturn:
    """Exit with the number of GPUs that a forked process can use."""
    torch, code = importlib.import_module("torch"), _NO_GPU
    with contextlib.suppress(Exception):
        count: int = torch.cuda.device_count()
        if count:
            torch.zeros(1, device="cuda")
        code = count
    os._exit(code)


def _run_rank(order: dict[str, Any], rank: int, local_rank: int) -> None:
    """Take environment, process group and log of a fresh process, and do what one does."""
    gc.freeze()  # a collection would copy all that was imported
    with contextlib.suppress(PermissionError):
        os.setpgid(0, 0)
    die_with_parent()
    # the fork server ends once nobody can order from it: a rank, which will not, must not keep it
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # variables about this node and its devices outrank those of the node the order came from
    kept = {k: v for k, v in os.environ.items() if k.startswith(slurm.OF_THIS_NODE)}
    os.environ.clear()
    os.environ.update(order["environment"] | {"RANK": f"{rank}", "LOCAL_RANK": f"{local_rank}"})
    os.environ.update(kept)
    with Path(order["logs"], f"rank{rank}.log").open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.argv[1:] = order["arguments"]
    importlib.import_module(_PROGRAM).main()
