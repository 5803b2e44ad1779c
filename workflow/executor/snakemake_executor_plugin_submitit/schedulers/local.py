"""Allocations as processes of this machine, started by submitit; they outlive the executor."""

import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from ..ownership import birth_of, recorded_process
from ..pack import Pack
from ..request import Request
from .base import Scheduler, State, pickle_by_value


class LocalProcesses(Scheduler):
    """See `Scheduler`. One node, no job arrays.

    A process whose pid was not recorded is not found again.
    """

    def __init__(
        self, *, gpus: int, request_of: Callable[[str, Mapping[str, Any]], Request]
    ) -> None:
        """`request_of` turns the resources of rules, which are a cluster's, into requests."""
        super().__init__()
        self._request_of = request_of
        self.gpus = gpus

    def request(self, rule: str, wanted: Mapping[str, Any]) -> Request:
        """See `Scheduler`."""
        return self._request_of(rule, wanted)

    def impossible(self, request: Request) -> str | None:
        """See `Scheduler`."""
        if request.nodes != 1:
            return "cluster=local has one node: nodes must be 1"
        if request.gpus > (self.gpus or 0):
            most = f"--submitit-gpus={self.gpus} is all that jobs may use here"
            return f"{request.gpus} GPUs are requested, but {most}"
        return None

    def send(
        self, batch: Path, allocations: Sequence[Path], request: Request, *, name: str,
        comment: str, minutes: int, gpus: Sequence[int],
    ) -> list[Mapping[str, Any]]:  # fmt: skip
        """See `Scheduler`."""
        import submitit

        executor = submitit.LocalExecutor(folder=batch)
        executor.update_parameters(
            timeout_min=minutes,
            signal_delay_s=30,
            stderr_to_stdout=True,
            gpus_per_node=len(gpus),
            visible_gpus=list(gpus),
            **({"setup": list(request.setup)} if request.setup else {}),
        )
        pickle_by_value()
        return [self.identity(int(executor.submit(Pack(str(a), 0)).job_id)) for a in allocations]

    def states(self, identities: Sequence[Mapping[str, Any]]) -> dict[str, State] | None:
        """See `Scheduler`."""
        return {
            str(identity["job"]): State("RUNNING")
            for identity in identities
            if self._process(identity) is not None
        }

    def cancel(self, identities: Sequence[Mapping[str, Any]]) -> bool:
        """See `Scheduler`. Jobs have sessions of their own and are ended with their parents."""
        processes: list[psutil.Process] = []
        for identity in identities:
            process = self._process(identity)
            if process is not None:
                processes.append(process)
                with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                    processes += process.children(recursive=True)
        for process in processes:
            _signal(process, signal.SIGTERM)
        _, alive = psutil.wait_procs(processes, timeout=12)
        for process in alive:
            _signal(process, signal.SIGKILL)
        return True

    @staticmethod
    def identity(pid: int) -> dict[str, Any]:
        """Identifies this process uniquely."""
        return {"job": str(pid), **birth_of(pid)}

    @staticmethod
    def _process(identity: Mapping[str, Any]) -> psutil.Process | None:
        return recorded_process(int(identity["job"]), identity)


def _signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return  # gone already
