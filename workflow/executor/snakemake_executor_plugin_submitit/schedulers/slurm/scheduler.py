"""Slurm: sbatch through submitit, and one squeue per poll for all jobs."""

import functools
import os
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ... import pack
from ...pack import Pack
from ...request import MARGIN_MIN, Request, RequestError
from ...settings import ExecutorSettings
from ..base import SENT_FROM, Listed, Refused, State
from . import allocation, resources
from .allocation import SlurmContext, clean_environment
from .words import kind_of, minutes_of, sentence, state_of

# The warning signal comes this early; it goes to the batch step, which the worker is.
SIGNAL_DELAY_S = 30
_ANSWER_S = 60

# A failing line of the site's set-up prints this and ends the job with this code. Lines of sourced
# files may fail.
_STOP_AT_A_FAILING_LINE = (
    "trap '(( ${#BASH_SOURCE[@]} > 1 )) || "
    '{ echo "a line of slurm_setup failed: $BASH_COMMAND" >&2; exit 78; }\' ERR'
)


class Slurm:
    """The place where allocations run. `queries` counts what its commands were asked."""

    def __init__(self, settings: ExecutorSettings) -> None:
        self.queries: Counter[str] = Counter()
        self._settings = settings

    def prepare(self) -> str | None:
        """Prepare this process to send from here; what the user should know, as a sentence.

        Inside a job, drops variables that would give others its shape.

        Raises:
            RequestError: nothing can be sent from here.
        """
        if shutil.which("sbatch") is None:
            raise RequestError("sbatch is not found: run this on a login node of a Slurm cluster")
        job = os.environ.get("SLURM_JOB_ID")
        if job is None:
            return None
        for name in os.environ.keys() - clean_environment().keys():
            del os.environ[name]
        return (
            f"this Snakemake runs inside job {job}: the end or time limit of that job ends this "
            "Snakemake, but not the allocations that it has sent"
        )

    @functools.cached_property
    def _site(self) -> tuple[set[str], dict[str, int | None]]:
        """The nodes, and the time limit of each partition; "" is the default one."""
        answer = self._ask("sinfo", "--all", "--noheader", "--Node", "--format=%N|%P|%l") or ""
        nodes, limits = set(), {}
        for line in answer.splitlines():
            if line.count("|") == 2:
                node, partition, limit = line.split("|")
                nodes.add(node)
                limits[partition.rstrip("*")] = minutes_of(limit)
                if partition.endswith("*"):
                    limits[""] = minutes_of(limit)
        return nodes, limits

    def avoiding(self, request: Request, hosts: Sequence[str]) -> Request:
        """The same request without these hosts."""
        return resources.avoiding(request, hosts, self._site[0])

    def longest_minutes(self, request: Request) -> int | None:
        """The longest time limit of its partition, of several the shortest; None: none is known."""
        named = str(request.options.get("partition", "")).split(",")
        limits = [self._site[1].get(name) for name in named]
        return min((limit for limit in limits if limit is not None), default=None)

    def impossible(self, request: Request) -> str | None:
        """Why such an allocation can never be given; None if only Slurm can tell."""
        longest = self.longest_minutes(request)
        if longest is None or request.minutes <= longest:
            return None
        where = request.options.get("partition", "the default one")
        return (
            f"it may take {request.runtime_min} minutes, with {MARGIN_MIN} for its start, and a "
            f"job of partition {where} at most {longest}"
        )

    def send(self, batch: Path, request: Request, *, name: str, comment: str) -> str:
        """Send the allocation of a batch; returns its id.

        Raises:
            Refused: it was not taken.
        """
        import cloudpickle
        import submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        # "exec": python becomes the batch script's own process, which --signal=B: reaches
        executor = submitit.SlurmExecutor(
            folder=as_it_is(batch),
            max_num_timeout=self._settings.max_restarts,
            python=f"exec {shlex.quote(sys.executable)}",
        )
        parameters = submitit_parameters(request, name=name, comment=comment)
        # Slurm puts the job's id for %j, also in the folder's name; there %% stands for itself
        more = {"output": f"{batch}".replace("%", "%%") + "/%j_0_log.out"}
        parameters["additional_parameters"] = more | parameters["additional_parameters"]
        parameters["setup"] = [owner_check(batch), *parameters.get("setup", [])]
        executor.update_parameters(**parameters)
        for module in (pack, allocation):  # whole, as compute nodes may lack this package
            cloudpickle.register_pickle_by_value(module)
        self.queries["sbatch"] += 1
        try:
            job = executor.submit(Pack(batch, SlurmContext()))
        except (FailedJobError, FailedSubmissionError) as refusal:
            message = sentence(str(refusal))
            raise Refused(message, kind_of(message)) from refusal
        for pickled in batch.glob("*.pkl"):
            pickled.chmod(0o600)
        return str(job.job_id)

    def listed(self, uid: int | None = None) -> list[Listed] | None:
        """Jobs of a user, by default this one, that live or ended lately; None: no answer.

        squeue lists ended jobs for MinJobAge (5 minutes by default).
        """
        whose, jobs = os.getuid() if uid is None else uid, []
        answer = self._ask(
            "squeue", "--all", "--noheader", "--states=all",
            *([f"--user={whose}"] if whose else []), "--format=%i|%T|%r|%Z|%k",
        )  # fmt: skip
        if answer is None:
            return None
        for line in answer.splitlines():
            parts = line.split("|", 4)
            if len(parts) == 5:  # else the second line of somebody's comment
                job, word, reason, directory, comment = parts
                batch = comment.strip().rpartition(", ")[2] if SENT_FROM in comment else ""
                state = state_of(word, reason)
                jobs.append(Listed(id=job.strip(), state=state, directory=directory, batch=batch))
        return jobs

    def left_in(self, directory: Path, uid: int) -> list[str] | None:
        """Ids of live jobs that this user's Snakemakes sent from there; None: no answer."""
        listed = self.listed(uid)
        if listed is None:
            return None
        here = (each for each in listed if each.batch and each.directory == str(directory))
        return [each.id for each in here if each.state.live]

    def accounted(self, jobs: Sequence[str]) -> dict[str, State]:
        """States of jobs that have left squeue, by id, as far as they are known.

        Jobs that only accounting calls alive ended unnoticed by slurmdbd.
        """
        answer = self._ask(
            "sacct", "--allocations", "--noheader", "--parsable2", "--format=JobID,State",
            f"--jobs={','.join(jobs)}",
        )  # fmt: skip
        lines = [line.partition("|") for line in (answer or "").splitlines()]
        # "CANCELLED by 1000"
        states = {job: state_of(words.split()[0], words) for job, _, words in lines if words}
        return {job: state for job, state in states.items() if not state.live}

    def cancel(self, jobs: Sequence[str]) -> bool:
        """End allocations and everything they run; whether Slurm has taken it."""
        # the length of a command line is limited
        some = [jobs[first : first + 200] for first in range(0, len(jobs), 200)]
        return None not in [self._ask("scancel", *names) for names in some]

    def _ask(self, program: str, *options: str) -> str | None:
        """The output of a Slurm command; None if it fails, which says nothing about any job."""
        self.queries[program] += 1
        # as sbatch does; sacct heeds neither
        elsewhere = os.environ.get("SBATCH_CLUSTERS") or os.environ.get("SLURM_CLUSTERS")
        try:
            done = subprocess.run(
                [program, *([f"--clusters={elsewhere}"] if elsewhere else []), *options],
                env=clean_environment(),
                capture_output=True,
                encoding="utf-8",
                errors="replace",  # comments of other users' jobs may hold anything
                timeout=_ANSWER_S,
                check=True,
            )
        except (subprocess.SubprocessError, FileNotFoundError):
            return None
        return done.stdout


def submitit_parameters(request: Request, *, name: str, comment: str) -> dict[str, Any]:
    """Keywords of `submitit.SlurmExecutor.update_parameters` for an allocation.

    submitit gets one task, the worker in the batch step, while Slurm gets the real geometry: with
    submitit's own srun the worker would run once per task.
    """
    parameters: dict[str, Any] = {
        "job_name": name,
        "comment": comment,
        "time": request.minutes,
        "use_srun": False,
        "signal_delay_s": SIGNAL_DELAY_S,
        "stderr_to_stdout": True,
        "additional_parameters": {
            "signal": f"B:USR2@{SIGNAL_DELAY_S}",
            **({} if "no-requeue" in request.options else {"requeue": True}),
            **request.options,
        },
    }
    if request.setup:
        parameters["setup"] = [_STOP_AT_A_FAILING_LINE, *request.setup, "trap - ERR"]
    return parameters


def as_it_is(batch: Path) -> Path:
    """This folder by a name in which submitit finds nothing to replace by the id of a job."""
    return Path("/proc/self/cwd", os.path.relpath(batch)) if "%" in str(batch) else batch


def owner_check(batch: Path) -> str:
    """A line of shell that ends the job if another user owns the files it would load and run."""
    folder = shlex.quote(str(batch))
    return f'[ -O {folder} ] || {{ echo "not run: {batch.name} is another user\'s"; exit 1; }}'
