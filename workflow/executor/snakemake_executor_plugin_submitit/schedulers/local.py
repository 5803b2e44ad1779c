"""Allocations as processes of this machine, started by submitit; they outlive the executor."""

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import psutil

from ..pack import Pack
from ..request import Request
from ..settings import ExecutorSettings
from .base import Listed, Scheduler, State, pickle_by_value


class LocalProcesses(Scheduler):
    """See `Scheduler`. One node."""

    def __init__(self, settings: ExecutorSettings) -> None:
        super().__init__()
        self.gpus = settings.gpus

    def impossible(self, request: Request) -> str | None:
        """See `Scheduler`."""
        if request.nodes != 1:
            return "cluster=local has one node: nodes must be 1"
        if request.gpus > (self.gpus or 0):
            most = f"--submitit-gpus={self.gpus} is all that jobs may use here"
            return f"{request.gpus} GPUs are requested, but {most}"
        return None

    def send(
        self, batch: Path, request: Request, *, name: str, comment: str, gpus: Sequence[int]
    ) -> str:
        """See `Scheduler`."""
        import submitit

        executor = submitit.LocalExecutor(folder=batch)
        executor.update_parameters(
            timeout_min=request.minutes,
            signal_delay_s=30,
            stderr_to_stdout=True,
            gpus_per_node=len(gpus),
            visible_gpus=list(gpus),
            **({"setup": list(request.setup)} if request.setup else {}),
        )
        pickle_by_value()
        return str(executor.submit(Pack(batch)).job_id)

    def listed(self, uid: int | None = None) -> list[Listed] | None:
        """See `Scheduler`. A worker names the folder of its batch in its command line."""
        found = []
        for process in psutil.process_iter(["pid", "cmdline", "cwd", "uids", "status"]):
            facts, words = process.info, process.info["cmdline"] or []
            if words[1:2] == ["-c"]:  # a shell that runs lines of set-up first
                words = words[2].split()
            if words[-2:-1] == ["submitit.local._local"] and facts["uids"] is not None:
                mine = facts["uids"].real == (os.getuid() if uid is None else uid)
                if mine and facts["status"] != psutil.STATUS_ZOMBIE:
                    job, batch = str(facts["pid"]), Path(words[-1].strip("'")).name
                    state, directory = State(text="RUNNING"), str(facts["cwd"])
                    found.append(Listed(id=job, state=state, directory=directory, batch=batch))
        return found

    def cancel(self, jobs: Sequence[str]) -> bool:
        """See `Scheduler`. Jobs have sessions of their own and are ended with their parents."""
        processes: list[psutil.Process] = []
        alive = {each.id for each in self.listed() or []}
        for job in alive & set(jobs):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                process = psutil.Process(int(job))
                processes += [process, *process.children(recursive=True)]
        for process in processes:
            _signal(process, signal.SIGTERM)
        _, left = psutil.wait_procs(processes, timeout=12)
        for process in left:
            _signal(process, signal.SIGKILL)
        return True


def _signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return  # gone already
