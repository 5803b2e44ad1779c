"""Many points on the cluster of these tests while things are killed: nothing is lost or doubled.

    python -m tests.slurm.soak [--points 1000] [--seed 1] [--real 50]

The same seed gives the same faults in the same order; when each strikes is the machine's affair.
Some of the points are real: `scaling measure` trains a tiny model. The command is given again for
as long as something is wanted, as a user would. Exit code 1, with what is wrong, else 0.
"""

import argparse
import contextlib
import itertools
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pyarrow.parquet as pq

from tests.points import tiny_point
from tests.processes import ended, until
from tests.slurm.lab import Lab, LabStudy, end

OPTIONS = ("--submitit-pack", "10", "--submitit-max-allocations", "8", "--quiet", "rules")
ROUNDS = 20  # of the command, until all is done
_FULL_S = 4.0
_PATIENCE_S = 15.0  # for something to be there that can be struck
_PARTING_S = 200.0  # for what was killed to be gone


class Soak:
    """One study, its faults and what must hold at the end."""

    def __init__(
        self, study: LabStudy, *, points: int, real: int, seed: int, every_s: tuple[float, float],
        rounds: int | None = None, limit_s: float = float("inf"),
    ) -> None:  # fmt: skip
        """Rounds: how often every kind of fault strikes; None: for as long as points are left."""
        self.study, self.lab = study, study.lab
        self.real = [f"p{n}" for n in range(0, points, max(1, points // real))] if real else []
        self.points = [f"p{n}" for n in range(points)]
        self.struck: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._every_s, self._rounds, self._limit_s = every_s, rounds, limit_s
        self._run: subprocess.Popen[bytes] | None = None
        self._kinds: dict[str, Callable[[], bool]] = {
            "rank killed": lambda: self._kill(lambda p: p.name() == "sleep"),
            "parent killed": lambda: self._kill(lambda p: "submitit.core._submit" in p.cmdline()),
            "snakemake killed": lambda: self._end_snakemake(signal.SIGKILL),
            "snakemake interrupted": lambda: self._end_snakemake(signal.SIGINT),
            "allocation cancelled": lambda: self._tell_a_job("scancel"),
            "allocation requeued": lambda: self._tell_a_job("scontrol", "requeue"),
            "node drained": lambda: self._lose_node("drain"),
            "node lost": lambda: self._lose_node("down"),
            "controller silent": self._silence_controller,
        }
        if os.path.ismount(study.folder.parent):  # a small file system of the study's own
            self._kinds["disk full"] = self._fill_disk

    def run(self) -> list[str]:
        """Strike until all points are there; what is wrong then, a sentence each."""
        self._write_points()
        faults, latest = self._faults(), time.monotonic() + self._limit_s
        for _ in range(ROUNDS):
            # a process of its own: a fork of the warm one may inherit a lock under this load
            self._run = self.study.start(*OPTIONS, python=sys.executable)
            while self._run.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._run.wait(self._random.uniform(*self._every_s))
                    break
                if time.monotonic() > latest:
                    return [f"it did not end in {self._limit_s:g} s: {self._state()}"]
                self._strike(next(faults, None))
            if self._run.wait() == 0 and len(self.study.done()) == len(self.points):
                break
        return self.wrong()

    def wrong(self) -> list[str]:
        """The violated rules: points = rows, no step doubled, nothing left over."""
        sentences = []
        if lost := set(self.points) - self.study.done():
            sentences.append(f"{len(lost)} points have no row: {sorted(lost)[:5]}")
        for name in self.real:
            row = self.study.folder / "rows" / f"{name}.parquet"
            if not row.exists() or len(pq.read_table(row)) != 1:
                sentences.append(f"{row.name} holds no row")
        sentences += [f"{name} ran twice at once: {when}" for name, when in self._doubled()]
        latest = time.monotonic() + _PARTING_S
        while (left := [*self._processes(), *self.lab.queue()]) and time.monotonic() < latest:
            time.sleep(0.5)
        return sentences + [f"left over: {one}" for one in left]

    def _write_points(self) -> None:
        """Each is a step of its own name; real ones train."""
        asked: dict[str, dict[str, object]] = {}
        for name in self.points:
            seconds = self._random.uniform(0.2, 1.5)
            asked[name] = {"command": f"srun --job-name={name} sleep {seconds:.1f}"}
        for name in self.real:
            path = self.study.folder / f"{name}.json"
            path.write_text(tiny_point(warmup_steps=1, measured_steps=5).to_json())
            words = f"{shlex.quote(sys.executable)} -m scaling measure {path} rows/{name}.parquet"
            asked[name] = {"command": f"[ -e rows/{name}.parquet ] || {words}"}
        self.study.points(**asked)

    def _faults(self) -> Iterator[str]:
        """Every kind once before any comes again, in an order that the seed says."""
        for _ in itertools.count() if self._rounds is None else range(self._rounds):
            yield from self._random.sample(sorted(self._kinds), len(self._kinds))

    def _strike(self, kind: str | None) -> None:
        """Once there is something to strike, unless all is over before; None: repair the nodes."""
        if kind is None:
            self._heal()
            return
        assert self._run is not None
        latest = time.monotonic() + _PATIENCE_S
        while self._run.poll() is None and time.monotonic() < latest:
            if self._kinds[kind]():
                self.struck[kind] += 1
                return
            time.sleep(0.1)

    def _state(self) -> str:
        """The rest of the work and the place where it may be stuck."""
        jobs = self._words("squeue", "--noheader", "--format=%i %T %r %N")
        nodes = self._words("sinfo", "-h", "-N", "-o", "%N %t %E")
        left = sorted(set(self.points) - self.study.done())
        return f"points {left}, jobs {jobs}, nodes {nodes}, struck {dict(self.struck)}"

    def _processes(self) -> list[psutil.Process]:
        """All that work in the study's folder, but its snakemake."""
        ours = self._run.pid if self._run else 0
        return [
            process
            for process in psutil.process_iter(["pid", "cwd"])
            if (process.info["cwd"] or "").startswith(str(self.study.folder))
            and process.pid != ours
        ]

    def _kill(self, wanted: Callable[[psutil.Process], bool]) -> bool:
        for process in self._random.sample(running := self._processes(), len(running)):
            with contextlib.suppress(psutil.Error):
                if wanted(process):
                    process.kill()
                    return True
        return False

    def _end_snakemake(self, number: signal.Signals) -> bool:
        assert self._run is not None
        if number == signal.SIGKILL:  # all of its processes
            os.killpg(self._run.pid, number)
        else:
            self._run.send_signal(number)
        self._run.wait(timeout=300)
        return True

    def _tell_a_job(self, *command: str) -> bool:
        running = [job for job, state in self.lab.queue().items() if state == "RUNNING"]
        if not running:
            return False
        job = self._random.choice(running)
        return ended(*command, job, env=self.lab.environment).returncode == 0  # else it just ended

    def _lose_node(self, state: str) -> bool:
        node = f"node{self._random.randint(1, 4)}"
        self.lab.ask("scontrol", "update", f"node={node}", f"state={state}", "reason=soak")
        time.sleep(self._random.uniform(1.0, 4.0))
        self._heal()
        return True

    def _heal(self) -> None:
        """Until all nodes are there again: one that was set down may be back by itself."""
        until("all nodes are there", self._healthy)

    def _healthy(self) -> bool:
        states = dict(self._words("sinfo", "-h", "-N", "-o", "%N %t"))
        ill = [n for n, state in states.items() if state not in ("idle", "mix", "alloc", "comp")]
        for node in ill:
            self._words("scontrol", "update", f"node={node}", "state=resume")
        return len(states) == 4 and not ill

    def _words(self, *command: str) -> list[list[str]]:
        """The words of each line that a command prints; none where Slurm refuses."""
        said = ended(*command, env=self.lab.environment).stdout
        return [line.split() for line in said.splitlines()]

    def _silence_controller(self) -> bool:
        self.lab.end("slurmctld", signal.SIGSTOP)
        try:
            time.sleep(self._random.uniform(3.0, 8.0))
        finally:
            self.lab.end("slurmctld", signal.SIGCONT)
        return True

    def _fill_disk(self) -> bool:
        filler = self.study.folder.parent / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(b"\0" * 65536)
        time.sleep(_FULL_S)
        filler.unlink()
        return True

    def _doubled(self) -> list[tuple[str, str]]:
        """Points of which two steps ran at once, by accounting, whose clock counts seconds."""
        time.sleep(3)  # accounting lags behind
        lines = self.lab.ask(
            "sacct", "-n", "-P", "--starttime=now-1days", "--duplicates",
            "--format=JobID,JobName,Start,End",
        ).splitlines()  # fmt: skip
        spans: dict[str, list[tuple[str, str]]] = {}
        for step, name, start, stop in (line.split("|") for line in lines):
            if "." in step and name in set(self.points) and start[0].isdigit():
                spans.setdefault(name, []).append((start, stop))
        return [
            (name, f"{one} {other}")
            for name, listed in spans.items()
            for one, other in zip(sorted(listed), sorted(listed)[1:], strict=False)
            if other[0] < one[1]
        ]


@contextlib.contextmanager
def small_disk(mebibytes: int) -> Iterator[Path]:
    """A folder on a file system of its own, where one can be had; else a folder."""
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        ended("mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "soak", folder)
        try:
            yield Path(folder)
        finally:
            ended("umount", "--lazy", folder)  # which fails where nothing is mounted


def main(words: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="tests.slurm.soak")
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--real", type=int, default=50, help="points that train")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=float, nargs=2, default=(5.0, 40.0), help="s, faults")
    given = parser.parse_args(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the cluster ends too
    began = time.monotonic()
    with Lab.running() as lab, small_disk(512) as folder:
        study = LabStudy(lab, folder / "study")
        soak = Soak(
            study, points=given.points, real=given.real, seed=given.seed, every_s=given.every
        )
        try:
            wrong = soak.run()
        finally:
            end(study.runs)
    faults = ", ".join(f"{kind} {count}" for kind, count in sorted(soak.struck.items()))
    print(f"{given.points} points in {time.monotonic() - began:.0f} s, seed {given.seed}: {faults}")  # noqa: T201
    print("\n".join(wrong) or "every point has its row, no step ran twice, nothing is left over")  # noqa: T201
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
