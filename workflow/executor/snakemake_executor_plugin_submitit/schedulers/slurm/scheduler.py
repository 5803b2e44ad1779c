"""Slurm: sbatch through submitit, and one squeue per poll for all jobs."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...pack import Pack
from ...request import MARGIN_MIN, Request
from ..base import SENT_FROM, JobId, Listed, Refused, Scheduler, State, pickle_by_value
from . import allocation, resources
from .allocation import SlurmContext, clean_environment
from .words import kind_of, minutes_of, names_unknown_node, sentence, state_of

# The warning signal comes this early; it goes to the batch step, which the worker is.
SIGNAL_DELAY_S = 30
_ANSWER_S = 60

# A failing line of the site's set-up prints this and ends the job with this code. Lines of sourced
# files may fail.
_STOP_AT_A_FAILING_LINE = (
    "trap '(( ${#BASH_SOURCE[@]} > 1 )) || "
    '{ echo "a line of slurm_setup failed: $BASH_COMMAND" >&2; exit 78; }\' ERR'
)


class Slurm(Scheduler):
    """See `Scheduler`. sacct is asked only about jobs that have left squeue."""

    largest_array = 1000  # below the default MaxArraySize of 1001
    forgets_jobs = True

    def __init__(self, settings: Any) -> None:
        super().__init__()
        self._settings = settings  # ExecutorSettings
        self._used = {_clusters(None)}  # clusters
        self._longest: dict[str | None, dict[str, int | None]] = {}  # by clusters and partition
        self._still_there: dict[str, str] = {}  # by entry of --exclude, its nodes that exist

    def unusable(self) -> str | None:
        """See `Scheduler`."""
        if shutil.which("sbatch") is not None:
            return None
        return (
            "sbatch is not found: run this on a login node of a Slurm cluster, or use "
            "--submitit-cluster local"
        )

    def prepare(self) -> str | None:
        """See `Scheduler`. Inside a job, drops variables that would give others its shape."""
        job = os.environ.get("SLURM_JOB_ID")
        if job is None:
            return None
        for name in os.environ.keys() - clean_environment().keys():
            del os.environ[name]
        return (
            f"this Snakemake runs inside job {job}: the end or time limit of that job ends this "
            "Snakemake, but not the allocations that it has sent"
        )

    def request(self, rule: str, wanted: Mapping[str, Any], threads: int = 1) -> Request:
        """See `Scheduler`."""
        request = resources.request_of(rule, wanted, threads)
        self._used.add(_clusters(request))
        return request

    def avoiding(self, request: Request, hosts: Sequence[str]) -> Request:
        """See `Scheduler`."""
        return resources.replace_excluded(resources.avoiding(request, hosts), self._still_there)

    def longest_minutes(self, request: Request) -> int | None:
        """See `Scheduler`: of the partition, which sinfo is asked once."""
        clusters = _clusters(request)
        if clusters not in self._longest:
            answer = self._ask("sinfo", clusters, "--all", "--noheader", "--format=%P|%l")
            lines = [
                line.split("|") for line in (answer or "").splitlines() if line.count("|") == 1
            ]
            limits = {name.rstrip("*"): minutes_of(limit) for name, limit in lines}
            default = [minutes_of(limit) for name, limit in lines if name.endswith("*")]
            self._longest[clusters] = limits | {"": default[0] if default else None}
        named = str(dict(request.options).get("partition", "")).split(",")
        limits = self._longest[clusters]
        return min((most for name in named if (most := limits.get(name)) is not None), default=None)

    def impossible(self, request: Request) -> str | None:
        """See `Scheduler`."""
        longest = self.longest_minutes(request)
        if longest is None or request.minutes <= longest:
            return None
        where = dict(request.options).get("partition", "the default one")
        return (
            f"it may take {request.runtime_min} minutes, with {MARGIN_MIN} for its start, and a "
            f"job of partition {where} at most {longest}"
        )

    def send(
        self, batch: Path, allocations: Sequence[Path], request: Request, *, name: str,
        comment: str, minutes: int, gpus: Sequence[int],
    ) -> list[JobId]:  # fmt: skip
        """See `Scheduler`; more than one allocation becomes a job array."""
        import submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        # "exec": python becomes the batch script's own process, which --signal=B: reaches
        executor = submitit.SlurmExecutor(
            folder=as_it_is(batch),
            max_num_timeout=self._settings.max_restarts,
            python=f"exec {shlex.quote(sys.executable)}",
        )
        parameters = submitit_parameters(
            request,
            name=f"{self._settings.name_prefix}{name}",
            # ours last: `listed` finds the batch at the end of a comment
            comment="; ".join(filter(None, [self._settings.comment, comment])),
            minutes=minutes,
            array=self._settings.array,
            requeue=not self._settings.no_requeue,
        )
        # Slurm puts the job's id for %j, also in the folder's name; there %% stands for itself
        log = f"{'%j' if len(allocations) == 1 else '%A_%a'}_0_log.out"
        more = {"output": f"{batch}".replace("%", "%%") + f"/{log}"}
        parameters["additional_parameters"] = more | parameters["additional_parameters"]
        parameters["setup"] = [owner_check(batch), *parameters.get("setup", [])]
        executor.update_parameters(**parameters)
        pickle_by_value(allocation)
        self.queries["sbatch"] += 1
        try:
            if len(allocations) == 1:
                jobs = [executor.submit(self._pack(allocations[0]))]
            else:
                with executor.batch():
                    jobs = [executor.submit(self._pack(a)) for a in allocations]
        except (FailedJobError, FailedSubmissionError) as refusal:
            message = sentence(str(refusal))
            if names_unknown_node(message) and (gone := self._forget_gone(request)):
                message = f"Slurm no longer has {', '.join(gone)}, which need not be excluded then"
                raise Refused(message, "busy") from refusal
            raise Refused(message, kind_of(message)) from refusal
        for pickled in batch.glob("*.pkl"):
            pickled.chmod(0o600)
        return [JobId(str(job.job_id), _clusters(request)) for job in jobs]

    def _forget_gone(self, request: Request) -> list[str]:
        """Exclude nodes that Slurm no longer has no more; their names, none without an answer."""
        answer = self._ask(
            "sinfo", _clusters(request), "--noheader", "--all", "--Node", "--format=%N"
        )
        nodes = set((answer or "").split())
        gone: list[str] = []
        for entry in resources.excluded_entries(request) if nodes else ():
            names = (self._ask("scontrol", None, "show", "hostnames", entry) or entry).split()
            if missing := [name for name in names if name not in nodes]:
                gone += missing
                self._still_there[entry] = ",".join(name for name in names if name in nodes)
        return gone

    def _pack(self, folder: Path) -> Pack:
        return Pack(str(folder), self._settings.max_restarts, SlurmContext())

    def listed(self, uid: int | None = None) -> list[Listed] | None:
        """See `Scheduler`. squeue lists ended jobs for MinJobAge (5 minutes by default)."""
        whose, jobs = os.getuid() if uid is None else uid, []
        for clusters in sorted(self._used, key=str):
            answer = self._ask(
                "squeue", clusters, "--all", "--noheader", "--array", "--states=all",
                *([f"--user={whose}"] if whose else []), "--format=%i|%T|%r|%Z|%k",
            )  # fmt: skip
            if answer is None:
                return None
            for line in answer.splitlines():
                parts = line.split("|", 4)
                if len(parts) == 5:  # else the second line of somebody's comment
                    job, word, reason, directory, comment = parts
                    batch = comment.strip().rpartition(", ")[2] if SENT_FROM in comment else ""
                    jobs.append(
                        Listed(
                            id=JobId(job.strip(), clusters),
                            state=state_of(word, reason),
                            directory=directory,
                            batch=batch,
                        )
                    )
        return jobs

    def accounted(self, jobs: Sequence[JobId]) -> dict[str, State]:
        """See `Scheduler`. Jobs that only accounting calls alive ended unnoticed by slurmdbd."""
        states: dict[str, State] = {}
        for clusters, names in _by_clusters(jobs).items():
            arrays = dict.fromkeys(name.partition("_")[0] for name in names)  # or the job itself
            answer = self._ask(
                "sacct", clusters, "--allocations", "--noheader", "--parsable2",
                "--format=JobID,State", f"--jobs={','.join(arrays)}",
            )  # fmt: skip
            lines = [line.partition("|") for line in (answer or "").splitlines()]
            # "CANCELLED by 1000"
            states |= {job: state_of(words.split()[0], words) for job, _, words in lines if words}
        return {job: state for job, state in states.items() if not state.live}

    def cancel(self, jobs: Sequence[JobId]) -> bool:
        """See `Scheduler`."""
        answers = [
            self._ask("scancel", clusters, *names[first : first + 200])
            for clusters, names in _by_clusters(jobs).items()
            for first in range(0, len(names), 200)  # the length of a command line is limited
        ]
        return None not in answers

    def _ask(self, program: str, clusters: str | None, *options: str) -> str | None:
        """The output of a Slurm command; None if it fails, which says nothing about any job."""
        self.queries[program] += 1
        elsewhere = [] if clusters is None else [f"--clusters={clusters}"]
        try:
            done = subprocess.run(
                [program, *elsewhere, *options],
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


def submitit_parameters(
    request: Request,
    *,
    name: str,
    comment: str,
    minutes: int,
    array: int | None = None,
    requeue: bool = True,
) -> dict[str, Any]:
    """Keywords of `submitit.SlurmExecutor.update_parameters` for an allocation.

    submitit gets one task, the worker in the batch step, while Slurm gets the real geometry: with
    submitit's own srun the worker would run once per task.
    """
    parameters: dict[str, Any] = {
        "job_name": name,
        "comment": comment,
        "time": minutes,
        "use_srun": False,
        "signal_delay_s": SIGNAL_DELAY_S,
        "stderr_to_stdout": True,
        "additional_parameters": {
            "signal": f"B:USR2@{SIGNAL_DELAY_S}",
            "requeue" if requeue else "no-requeue": True,
            **dict(request.options),
        },
    }
    if request.setup:
        parameters["setup"] = [_STOP_AT_A_FAILING_LINE, *request.setup, "trap - ERR"]
    if array is not None:
        parameters["array_parallelism"] = array
    return parameters


def as_it_is(batch: Path) -> Path:
    """This folder by a name in which submitit finds nothing to replace by the id of a job."""
    return Path("/proc/self/cwd", os.path.relpath(batch)) if "%" in str(batch) else batch


def owner_check(batch: Path) -> str:
    """A line of shell that ends the job if another user owns the files it would load and run."""
    folder = shlex.quote(str(batch))
    return f'[ -O {folder} ] || {{ echo "not run: {batch.name} is another user\'s"; exit 1; }}'


def _clusters(request: Request | None) -> str | None:
    """The clusters that sbatch chooses from, if told to use others than this one."""
    options = {} if request is None else dict(request.options)
    named = options.get("clusters") or options.get("cluster") or os.environ.get("SBATCH_CLUSTERS")
    return str(named) if named else None


def _by_clusters(jobs: Iterable[JobId]) -> dict[str | None, list[str]]:
    by_clusters: dict[str | None, list[str]] = {}
    for name, clusters in jobs:
        by_clusters.setdefault(clusters, []).append(name)
    return by_clusters
