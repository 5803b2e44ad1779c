"""What a pack asks of Slurm from inside its allocation. It travels with the pack."""

import os
import shutil
import subprocess

from ...pack import Surroundings

# of Slurm's variables, those that say whom to ask; all others change what is answered, or how
_WHOM_TO_ASK = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT"}


class SlurmAllocation(Surroundings):
    """See `Surroundings`."""

    def restarts(self) -> int:
        """See `Surroundings`."""
        return int(os.environ.get("SLURM_RESTART_COUNT", "0"))

    def host(self) -> str:
        """See `Surroundings`."""
        return os.environ.get("SLURMD_NODENAME") or super().host()

    def for_jobs(self) -> dict[str, str]:
        """See `Surroundings`: where a site exports nothing into jobs, srun would do so to ranks."""
        return {"SLURM_EXPORT_ENV": "ALL"}

    def end_leftovers(self) -> None:
        """See `Surroundings`: the steps of an srun that was killed would live on."""
        job = os.environ["SLURM_JOB_ID"]
        steps = _ask(
            "squeue", "--all", "--noheader", "--steps", f"--jobs={job}", "--format=%i"
        ).split()
        numbered = [step for step in steps if step.rpartition(".")[2].isdigit()]
        if numbered:
            _ask("scancel", "--signal=KILL", *numbered)

    def begin_anew(self) -> bool:
        """See `Surroundings`; not one that is being ended already."""
        job = os.environ["SLURM_JOB_ID"]
        state = _ask("squeue", "--all", "--noheader", f"--jobs={job}", "--format=%T").strip()
        if state != "RUNNING":
            return False
        _ask("scontrol", "requeue", job)
        return True


def _ask(*command: str) -> str:
    """What Slurm answers; nothing if it does not."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        answer = subprocess.run(
            command, env=own_environment(), capture_output=True, text=True, timeout=30
        )
    except subprocess.TimeoutExpired:
        # the log of the allocation
        print(f"{' '.join(command)}: Slurm does not answer", flush=True)  # noqa: T201
        return ""
    return answer.stdout


def own_environment() -> dict[str, str]:
    """For Slurm's commands: without the variables by which people change what these print."""
    ours = ("SQUEUE_", "SACCT_", "SCANCEL_", "SLURM_")
    return {
        name: value
        for name, value in os.environ.items()
        if name in _WHOM_TO_ASK or not name.startswith(ours)
    }
