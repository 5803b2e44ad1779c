"""Where allocations run: Slurm, or processes of this machine, asked as seldom as possible."""

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import psutil

# final states; a word that is not here means that the job may still run
ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL",
    "OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
}  # fmt: skip
_ANSWER_S = 60


@dataclass(frozen=True, slots=True)
class State:
    """An allocation as the scheduler sees it: a word of Slurm's, and why it waits."""

    word: str
    reason: str = ""

    @property
    def live(self) -> bool:
        """It waits, runs, or is being cleaned up."""
        return self.word not in ENDED


class Scheduler(Protocol):
    """What the executor asks a scheduler."""

    queries: Counter[str]

    def states(self, identities: Sequence[Mapping[str, Any]]) -> dict[str, State] | None:
        """State by job id; an id that is missing has vanished; None: no answer this time."""

    def find(self, batch: str) -> dict[str, State] | None:
        """Live jobs that carry this comment, by id; None: no answer this time."""

    def cancel(self, identities: Sequence[Mapping[str, Any]]) -> None:
        """End allocations and all they run."""


class Slurm:
    """Slurm's commands: one squeue a poll for everything, sacct only for what vanished from it."""

    def __init__(self) -> None:
        self.queries: Counter[str] = Counter()

    def states(self, identities: Sequence[Mapping[str, Any]]) -> dict[str, State] | None:
        """See `Scheduler`. squeue still knows jobs that ended within MinJobAge (5 minutes)."""
        listed = self._squeue()
        if listed is None:
            return None
        states = {job: state for job, (state, _) in listed.items()}
        wanted = [str(identity["job"]) for identity in identities]
        vanished = [job for job in wanted if job not in states]
        if vanished:
            states |= self._sacct(vanished)
        return {job: states[job] for job in wanted if job in states}

    def find(self, batch: str) -> dict[str, State] | None:
        """See `Scheduler`."""
        listed = self._squeue()
        if listed is None:
            return None
        return {
            job: state
            for job, (state, comment) in listed.items()
            if state.live and comment.endswith(batch)
        }

    def cancel(self, identities: Sequence[Mapping[str, Any]]) -> None:
        """See `Scheduler`."""
        jobs = [str(identity["job"]) for identity in identities]
        for first in range(0, len(jobs), 200):  # the length of a command line is limited
            self._ask("scancel", *jobs[first : first + 200])

    def _squeue(self) -> dict[str, tuple[State, str]] | None:
        answer = self._ask(
            "squeue", "--noheader", "--array", "--states=all", f"--user={os.getuid()}",
            "--format=%i|%T|%r|%k",
        )  # fmt: skip
        if answer is None:
            return None
        found = {}
        for line in answer.splitlines():
            parts = line.split("|", 3)
            if len(parts) == 4:  # not the second line of a comment that somebody wrote
                job, word, reason, comment = parts
                found[job.strip()] = State(word, reason), comment.strip()
        return found

    def _sacct(self, jobs: Iterable[str]) -> dict[str, State]:
        """Final states from accounting; empty where there is none."""
        answer = self._ask(
            "sacct", "--allocations", "--noheader", "--parsable2", "--format=JobID,State",
            f"--jobs={','.join(jobs)}",
        )  # fmt: skip
        found = {}
        for line in (answer or "").splitlines():
            job, _, words = line.partition("|")
            if words:  # "CANCELLED by 1000"
                found[job] = State(words.split()[0])
        return found

    def _ask(self, *command: str) -> str | None:
        """What Slurm answers; None if it does not, which is no news about any job."""
        self.queries[command[0]] += 1
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_ANSWER_S, check=True
            )
        except (subprocess.SubprocessError, FileNotFoundError):
            return None
        return done.stdout


class LocalProcesses:
    """submitit's local executor: an allocation is a process of this machine."""

    def __init__(self) -> None:
        self.queries: Counter[str] = Counter()

    def states(self, identities: Sequence[Mapping[str, Any]]) -> dict[str, State] | None:
        """See `Scheduler`. A pid counts only with its time of creation: pids are used again."""
        return {
            str(identity["job"]): State("RUNNING")
            for identity in identities
            if self._process(identity) is not None
        }

    def find(self, batch: str) -> dict[str, State] | None:
        """See `Scheduler`; a process whose pid nobody wrote down is not found again."""
        return {}

    def cancel(self, identities: Sequence[Mapping[str, Any]]) -> None:
        """See `Scheduler`. Jobs have sessions of their own and are ended with their parents."""
        processes: list[psutil.Process] = []
        for identity in identities:
            process = self._process(identity)
            if process is not None:
                processes += [process, *process.children(recursive=True)]
        for process in processes:
            _signal(process, signal.SIGTERM)
        _, alive = psutil.wait_procs(processes, timeout=12)
        for process in alive:
            _signal(process, signal.SIGKILL)

    @staticmethod
    def identity(pid: int) -> dict[str, Any]:
        """What names this process and no other."""
        return {"job": str(pid), "created": psutil.Process(pid).create_time()}

    @staticmethod
    def _process(identity: Mapping[str, Any]) -> psutil.Process | None:
        try:
            process = psutil.Process(int(identity["job"]))
            same = abs(process.create_time() - identity["created"]) < 1
            alive = same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return None
        return process if alive else None


def _signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return  # gone already
