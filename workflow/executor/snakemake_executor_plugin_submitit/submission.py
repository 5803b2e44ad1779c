"""Allocations are sent off through submitit, and what sbatch answers is understood."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from . import pack as pack_module
from .pack import Pack
from .request import Request, submitit_parameters
from .schedulers import LocalProcesses

# sbatch says one of these when the same request may succeed later
_LATER = (
    "submit job limit",
    "SubmitJobPerUserLimit",
    "MaxSubmitJob",
    "GrpSubmitJob",
    "temporarily unable",
    "temporarily unavailable",
    "Unable to contact slurm controller",
    "Socket timed out",
    "slurm_receive_msg",
    "Connection refused",
)


class Refused(RuntimeError):
    """The scheduler did not take an allocation; its text is what it said.

    `later`: it may take it later. `unsure`: it may have taken it all the same.
    """

    def __init__(self, said: str) -> None:
        super().__init__(said)
        self.later = any(word.lower() in said.lower() for word in _LATER)
        self.unsure = "timed out" in said.lower()


class Sender(Protocol):
    """How allocations of one batch are sent."""

    def send(
        self, batch: Path, allocations: Sequence[Path], request: Request, *, name: str,
        comment: str, minutes: int, gpus: Sequence[int],
    ) -> list[Mapping[str, Any]]:  # fmt: skip
        """Identities of the allocations, in their order.

        Raises:
            Refused: none was taken.
        """


class SlurmSender:
    """sbatch, called by submitit; more than one allocation becomes a job array."""

    def __init__(self, max_restarts: int, array: int | None) -> None:
        self._max_restarts = max_restarts
        self._array = array

    def executor(
        self, batch: Path, request: Request, *, name: str, comment: str, minutes: int
    ) -> Any:
        """The submitit executor that is ready to submit one batch."""
        import submitit

        # "exec": python becomes the batch script's own process, which --signal=B: reaches
        executor = submitit.SlurmExecutor(
            folder=batch,
            max_num_timeout=self._max_restarts,
            python=f"exec {shlex.quote(sys.executable)}",
        )
        parameters = submitit_parameters(
            request, name=name, comment=comment, minutes=minutes, array=self._array
        )
        executor.update_parameters(**parameters)
        return executor

    def send(
        self, batch: Path, allocations: Sequence[Path], request: Request, *, name: str,
        comment: str, minutes: int, gpus: Sequence[int],
    ) -> list[Mapping[str, Any]]:  # fmt: skip
        """See `Sender`."""
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        executor = self.executor(batch, request, name=name, comment=comment, minutes=minutes)
        _pickle_by_value()
        try:
            if len(allocations) == 1:
                jobs = [executor.submit(Pack(str(allocations[0]), self._max_restarts))]
            else:
                with executor.batch():
                    jobs = [executor.submit(Pack(str(a), self._max_restarts)) for a in allocations]
        except (FailedJobError, FailedSubmissionError) as refusal:
            raise Refused(_sentence(str(refusal))) from refusal
        return [{"job": str(job.job_id)} for job in jobs]


class LocalSender:
    """Processes of this machine, started by submitit; they outlive us."""

    def send(
        self, batch: Path, allocations: Sequence[Path], request: Request, *, name: str,
        comment: str, minutes: int, gpus: Sequence[int],
    ) -> list[Mapping[str, Any]]:  # fmt: skip
        """See `Sender`. There are no job arrays here, and one node."""
        import submitit

        if dict(request.options)["nodes"] != 1:
            raise Refused("cluster=local has one node: nodes must be 1")
        executor = submitit.LocalExecutor(folder=batch)
        executor.update_parameters(
            timeout_min=minutes,
            signal_delay_s=30,
            stderr_to_stdout=True,
            gpus_per_node=len(gpus),
            visible_gpus=list(gpus),
            **({"setup": list(request.setup)} if request.setup else {}),
        )
        _pickle_by_value()
        return [
            LocalProcesses.identity(int(executor.submit(Pack(str(a), 0)).job_id))
            for a in allocations
        ]


def _pickle_by_value() -> None:
    import cloudpickle

    cloudpickle.register_pickle_by_value(pack_module)


def _sentence(said: str) -> str:
    """What sbatch said, on one line and without its own name on each."""
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in said.splitlines()]
    return "; ".join(line.strip() for line in lines if line.strip()) or "nothing"
