"""A real Slurm on this machine, and a small study of trivial points to send to it."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.processes import until
from tests.warm import warm_python

HERE = Path(__file__).parent
_ASKED = 20  # times, each of at least MESSAGE_TIMEOUT
TOOLS = ("slurmctld", "slurmd", "slurmdbd", "mariadbd", "munged")
# what the cluster of these tests has beyond start.sh: preemption, accounts that are enforced
EXTRA_CONF = """\
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
AccountingStorageEnforce=associations,limits,qos
PartitionName=DEFAULT PriorityTier=1 GraceTime=15
PartitionName=high Nodes=node[1-4] PriorityTier=10 PreemptMode=OFF"""

# runs before each job; fails once for each file beside it that asks for it
PROLOG = '#!/bin/sh\n! rm "$0.fails" 2> /dev/null\n'


def end(runs: Iterable[subprocess.Popen[bytes]], lab: "Lab | None" = None) -> None:
    """Kill every Snakemake that a failed test has left, with its children; and the lab's jobs."""
    for run in runs:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
    if lab is not None and (jobs := list(lab.queue())):
        lab.ask("scancel", *jobs)


class Lab:
    """The cluster: four nodes of eight CPUs and four pretended GPUs."""

    def __init__(self, folder: Path, **settings: str) -> None:
        """The settings are those of start.sh."""
        self.folder = folder
        self.environment = {
            **os.environ,
            "SLURM_LAB": str(folder),
            "SLURM_CONF": str(folder / "etc" / "slurm.conf"),
            "PORT_BASE": str(8000 + os.getpid() % 80 * 150),
            "CRED_EXPIRE": "5",  # a requeued job waits so long
            "EXTRA_CONF": f"{EXTRA_CONF}\nProlog={folder}/prolog",
            **settings,
        }

    @classmethod
    @contextlib.contextmanager
    def running(cls, **settings: str) -> Iterator["Lab"]:
        """A cluster in a folder of its own, with an account and a QOS that lets one have two jobs.

        The path is short (it holds unix sockets), and the database's user must get through to it.
        """
        folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        (folder / "prolog").write_text(PROLOG)
        (folder / "prolog").chmod(0o755)
        lab = cls(folder, **settings)
        try:
            lab.start()
            for words in ("account lab", "user root account=lab", "qos two MaxSubmitJobsPerUser=2"):
                lab.ask("sacctmgr", "-i", "add", *words.split())
            lab.ask("sacctmgr", "-i", "modify", "user", "root", "set", "qos+=two")
            yield lab
        finally:
            lab.stop()
            shutil.rmtree(folder, ignore_errors=True)

    def start(self) -> None:
        """Start what is not running."""
        self._script("start.sh")

    def stop(self) -> None:
        """End all of it."""
        self._script("stop.sh")

    def _script(self, name: str) -> None:
        done = subprocess.run(
            ["bash", HERE / name], env=self.environment, capture_output=True, text=True, timeout=580
        )
        assert done.returncode == 0, done.stderr

    def ask(self, *command: str) -> str:
        """The output of a command of Slurm, asked again if the controller was too busy to answer.

        But for sbatch: the job may have been taken all the same.
        """
        for _ in range(1 if command[0] == "sbatch" else _ASKED):
            done = subprocess.run(
                command, env=self.environment, capture_output=True, text=True, timeout=300
            )
            if done.returncode == 0 or not re.search("timed out|nable to contact", done.stderr):
                break
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def end(self, daemon: str, number: signal.Signals) -> None:
        """End a daemon by the pid that start.sh wrote down; `start` brings it back."""
        os.kill(int((self.folder / "pid" / f"{daemon}.pid").read_text()), number)

    def submit(self, *options: str, command: str) -> str:
        """The id of a job of another program that runs this."""
        words = ("sbatch", "--parsable", "--account=lab", "--output=/dev/null", *options)
        return self.ask(*words, "--wrap", command).strip()

    def queue(self) -> dict[str, str]:
        """State of every job that is not over, by id; array tasks apart."""
        lines = self.ask("squeue", "--noheader", "--array", "--format=%i|%T").splitlines()
        return dict(line.split("|") for line in lines)

    def reasons(self) -> list[str]:
        """Why jobs wait."""
        return self.ask("squeue", "--noheader", "--format=%r").splitlines()

    def submissions(self) -> set[str]:
        """Ids of all jobs that were ever submitted: accounting, and squeue for the last seconds."""
        known = self.ask("sacct", "-X", "-n", "-P", "--starttime=now-2hours", "--format=JobID")
        recent = self.ask("squeue", "--noheader", "--array", "--states=all", "--format=%i")
        return {job for job in (known + recent).split() if "[" not in job}


class Study:
    """Points say when they start, and leave one file each."""

    def __init__(self, folder: Path, *files: Path) -> None:
        """The first of the files becomes the Snakefile."""
        self.folder = folder
        folder.mkdir()
        snakefile, *others = files
        shutil.copy(snakefile, folder / "Snakefile")
        for file in others:
            shutil.copy(file, folder)

    def points(self, **points: object) -> None:
        """The command and resources of each point, as the Snakefile has it."""
        (self.folder / "points.json").write_text(json.dumps(points))

    def snakemake(
        self, python: str, *options: str, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Snakemake in the background, in a session of its own as in another terminal.

        With what a user says, and says again after whatever happened.
        """
        command = [
            *(python, "-m", "snakemake", "--executor", "submitit", "--nolock"),
            *("--rerun-incomplete", "--keep-going", "--seconds-between-status-checks", "1"),
            *options,
        ]
        with (self.folder / "snakemake.log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
                # a test run in the background of a shell ignores Ctrl-C, and so would its children
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )  # fmt: skip

    @property
    def said(self) -> str:
        """All that Snakemake printed."""
        return (self.folder / "snakemake.log").read_text()

    def starts(self) -> Counter[str]:
        """How often each point was started."""
        path = self.folder / "starts"
        return Counter(path.read_text().split()) if path.exists() else Counter()

    def wait_for_start(self, *points: str) -> None:
        """Until all of these points have been started."""
        until(f"{points} start", lambda: set(points) <= set(self.starts()))


class LabStudy(Study):
    """A study whose points are sent to the cluster."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        super().__init__(folder, HERE / "points.smk", HERE / "point.sh")
        self.lab = lab
        self._before = lab.submissions()
        self.environment: dict[str, str] = {}  # of the user, beside the lab's
        self.runs: list[subprocess.Popen[bytes]] = []

    def start(self, *options: str, python: str | None = None) -> subprocess.Popen[bytes]:
        """By a warm python if by none."""
        run = self.snakemake(
            python or warm_python(),
            *("--jobs", "1000", "--latency-wait", "2", "--rerun-triggers", "mtime", "params"),
            *("--default-resources", "mem_mb=100", "disk=None", *options),
            environment={**self.lab.environment, **self.environment},
        )
        self.runs.append(run)
        return run

    def started(self, *points: str, options: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        """Snakemake, once it has started all of these points."""
        run = self.start(*options)
        self.wait_for_start(*points)
        return run

    def run(self, *options: str) -> int:
        """Snakemake to its end; its exit code."""
        return self.start(*options).wait(timeout=500)

    def done(self) -> set[str]:
        """Points that left their file."""
        return {path.stem for path in (self.folder / "out").glob("*.txt")}

    def jobs(self) -> set[str]:
        """Ids of the Slurm jobs that were submitted since this study was made."""
        return self.lab.submissions() - self._before
