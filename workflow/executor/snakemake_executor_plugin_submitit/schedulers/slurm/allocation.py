"""A pack's questions to Slurm from inside its allocation. Travels with the pack."""

import os
import shutil
import subprocess

from ...pack import AllocationContext

# Slurm's variables that select the controller; all others change what commands print.
_WHOM_TO_ASK = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT"}


class SlurmContext(AllocationContext):
    """See `AllocationContext`."""

    def restarts(self) -> int:
        """See `AllocationContext`."""
        return int(os.environ.get("SLURM_RESTART_COUNT", "0"))

    def host(self) -> str:
        """See `AllocationContext`."""
        return os.environ.get("SLURMD_NODENAME") or super().host()

    def job_environment(self) -> dict[str, str]:
        """See `AllocationContext`: where sbatch exports nothing, srun would not either."""
        return {"SLURM_EXPORT_ENV": "ALL"}

    def kill_leftovers(self) -> None:
        """See `AllocationContext`. The steps of a killed srun would live on."""
        job = os.environ["SLURM_JOB_ID"]
        steps = _ask(
            "squeue", "--all", "--noheader", "--steps", f"--jobs={job}", "--format=%i"
        ).split()
        numbered = [step for step in steps if step.rpartition(".")[2].isdigit()]
        if numbered:
            _ask("scancel", "--signal=KILL", *numbered)

    def requeue(self) -> bool:
        """See `AllocationContext`. Not while the job is being ended already, or may not be."""
        job = os.environ["SLURM_JOB_ID"]
        state = _ask("squeue", "--all", "--noheader", f"--jobs={job}", "--format=%T").strip()
        if state != "RUNNING":
            return False
        answer = _run("scontrol", "requeue", job)
        return answer is not None and answer.returncode == 0


def _ask(*command: str) -> str:
    """The output of a Slurm command; empty if Slurm does not answer."""
    answer = _run(*command)
    return "" if answer is None else answer.stdout


def _run(*command: str) -> subprocess.CompletedProcess[str] | None:
    """Run a Slurm command; None if it is missing or does not end."""
    if shutil.which(command[0]) is None:
        return None
    try:
        return subprocess.run(
            command, env=clean_environment(), capture_output=True, text=True, timeout=30
        )
    except subprocess.TimeoutExpired:
        # the log of the allocation
        print(f"{' '.join(command)}: Slurm does not answer", flush=True)  # noqa: T201
        return None


def clean_environment() -> dict[str, str]:
    """The environment for Slurm's commands, without variables that change what they do."""
    ours = ("SQUEUE_", "SACCT_", "SCANCEL_", "SINFO_", "SLURM_")
    return {
        name: value
        for name, value in os.environ.items()
        if name in _WHOM_TO_ASK or not name.startswith(ours)
    }
