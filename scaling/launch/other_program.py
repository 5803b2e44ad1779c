"""Measure a point with somebody else's program: its log is progress, result and failure."""

import contextlib
import dataclasses
import math
import os
import random
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from scaling.cluster.node import host_name
from scaling.launch.judge import Limits, Verdict
from scaling.launch.ranks import FinishedRun, run_ranks
from scaling.launch.start.environment import rank_environment
from scaling.launch.start.rank_exits import last_error
from scaling.launch.start.starter import Launch, Starter
from scaling.record.rank_files import RankExit, RankFailure, RankFiles, RankResult, Stack
from scaling.study.point import Point
from scaling.trainers.entries import Trainer, trainer_named, values_of
from scaling.trainers.logs import LogReader, failure_of, steady_seconds
from scaling.trainers.render import render

FEW_STEPS = 5  # a row with fewer is marked as not steady
_OWN_RANKS_ONLY = ("TORCHDYNAMO_DISABLE", "DS_ACCELERATOR")  # variables for our own programs
_TAIL = 200_000  # bytes of a failed rank's log that are searched for the reason
Exits = Mapping[int, RankExit]  # of the ranks that have ended
_STATED, _STAMPED = "trainer's log", "launcher's stamps of the log"


class LogFiles(RankFiles):
    """Reports of ranks that write logs only, made of their logs."""

    leave_stacks = False  # a signal would end them

    def __init__(self, trainer: Trainer, world_size: int, logs: Path, folder: Path, steps: int):
        super().__init__(folder)
        self._trainer, self._logs, self._steps = trainer, logs, steps
        self.readers = [LogReader(trainer) for _ in range(world_size)]
        self._read = [0] * world_size  # bytes of each rank's log

    def poll(self) -> None:
        """Read the whole lines that have been added, and stamp them."""
        for rank, reader in enumerate(self.readers):
            with contextlib.suppress(OSError), self._log(rank).open("rb") as log:
                log.seek(self._read[rank])
                whole, newline, _ = log.read(2**24).rpartition(b"\n")
                self._read[rank] += len(whole) + len(newline)
                now = time.perf_counter()
                for line in whole.decode(errors="replace").splitlines():
                    reader.feed(line, now)

    def beats(self) -> dict[int, str]:
        """The last sign of each rank that has written a line."""
        self.poll()
        return {
            rank: f"step {len(reader.steps)} of {self._steps}" if reader.steps else "starting"
            for rank, reader in enumerate(self.readers)
            if self._read[rank]
        }

    def finished(self, exits: Exits | None = None) -> frozenset[int]:
        """The ranks that ended well, once a log tells all steps: often one rank speaks for all."""
        self.poll()
        told_all = len(self.speaker.steps) >= self._steps
        return frozenset(r for r, end in (exits or {}).items() if end.code == 0 and told_all)

    def failures(self, exits: Exits) -> dict[int, RankFailure]:
        """Why ranks failed; if all ended well, what their log does not tell."""
        told = f"{len(self.speaker.steps)} of {self._steps} steps, by config/trainers.yaml"
        if len(exits) == len(self.readers) and not any(end.code for end in exits.values()):
            message = f"all ranks ended with exit code 0, and their log tells {told}"
            return dict.fromkeys(
                exits, RankFailure(outcome="error", message=message, failed_at=0.0)
            )
        return {rank: self._failure(rank, end) for rank, end in exits.items() if end.code > 0}

    def _failure(self, rank: int, end: RankExit) -> RankFailure:
        log = self._log(rank)
        text = log.read_bytes()[-_TAIL:].decode(errors="replace") if log.exists() else ""
        found = failure_of(self._trainer, text)
        line = last_error(log) if found is None else found[1]
        message = line or f"ended with exit code {end.code}; its log says no error"
        at = log.stat().st_mtime if log.exists() else time.time()
        return RankFailure(outcome=found[0] if found else "error", message=message, failed_at=at)

    def _log(self, rank: int) -> Path:
        return self._logs / f"rank{rank}.log"

    @property
    def speaker(self) -> LogReader:
        """The reader of the rank that tells most steps."""
        return max(self.readers, key=lambda reader: len(reader.steps))


def run_trainer(
    point: Point, start: Starter, logs: Path, folder: Path, limits: Limits
) -> FinishedRun:
    """Run a point with the program that its engine names; `folder` holds its files.

    Raises:
        InputError: config/trainers.yaml is invalid or lacks the program.
        KilledFromOutside: somebody ended the ranks.
    """
    trainer = trainer_named(point.layout.engine)
    rendered = render(trainer, point, folder)
    for name, text in rendered.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    environment = rank_environment(point, os.environ)
    for name in _OWN_RANKS_ONLY:
        if name not in os.environ:
            environment.pop(name, None)
    environment["MASTER_PORT"] = str(free_port())
    steps = point.warmup_steps + point.measured_steps
    files = LogFiles(trainer, point.world_size, logs, folder, steps)
    command = rendered.command
    if command[:1] == ("python",):  # which may be none or another
        command = (sys.executable, *command[1:])
    launch = Launch(command, point, environment | rendered.environment, logs)
    run = run_ranks(launch, files, start, limits)
    if run.verdict.outcome != "ok":
        return run
    files.poll()
    return _with_results(run, point, files)


def free_port() -> int:
    """A random port that is free on this host and not one of those that systems give away."""
    while True:
        port = random.randint(20_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as tried:
            tried.bind(("", port))
            return port


def _with_results(run: FinishedRun, point: Point, files: LogFiles) -> FinishedRun:
    """The run with what its log tells, or an error where the log contradicts the point."""
    from scaling.launch.make_row import installed_version  # late: it loads numpy and DuckDB

    reader, layout = files.speaker, point.layout
    reader.close()
    samples = layout.global_batch_size
    seconds, stated = steady_seconds(
        reader,
        warmup=point.warmup_steps,
        tokens=samples * point.shape.tokens_per_sequence(layout.seq_length),
        samples=samples,
        gpus=point.world_size,
    )
    losses = [step.values.get("loss") for step in reader.steps]
    norms = [step.values.get("grad_norm") for step in reader.steps]
    bad = next((n for n, loss in enumerate(losses) if loss is not None and math.isnan(loss)), None)
    problem = _contradiction(reader, point)
    problem = problem or (None if bad is None else f"loss is not a number at step {bad}")
    problem = problem or (None if seconds else "its log tells the time of no ordinary step")
    if problem:
        return dataclasses.replace(run, verdict=Verdict(outcome="error", message=problem))
    first = reader.steps[0]
    age_s = 0.0 if first.stamp is None else time.perf_counter() - first.stamp
    result = RankResult(
        clock=_STATED if stated else _STAMPED,
        step_times_s=seconds,
        losses=_complete(losses),
        grad_norms=_complete(norms),
        peak_memory_bytes=max((r.peak_bytes for r in files.readers if r.peak_bytes), default=None),
        peak_reserved_bytes=None,
        memory_meter=_STATED if any(reader.peak_bytes for reader in files.readers) else None,
        first_step_at=time.time() - age_s - first.values.get("seconds", 0.0),
        stopped="not_steady" if len(seconds) < FEW_STEPS else "asked",
    )
    torch = installed_version("torch") or "unknown"
    stack = Stack(host=host_name(os.environ), torch_version=torch)
    ranks = range(point.world_size)
    return dataclasses.replace(
        run, results=dict.fromkeys(ranks, result), stacks=dict.fromkeys(ranks, stack)
    )


def _contradiction(reader: LogReader, point: Point) -> str | None:
    """A sentence if the log's head states another layout or shape than the point."""
    known = values_of(point.shape, point.layout) | {
        "world_size": point.world_size,
        "global_batch_size": point.layout.global_batch_size,
    }
    for name, text in reader.head.items():
        counted = text.isdigit() and isinstance(known.get(name), int)
        if counted and int(text) != known[name]:
            return f"its log says {name}={text}, and the point has {name}={known[name]}"
    return None


def _complete(values: Sequence[float | None]) -> list[float] | None:
    known = [value for value in values if value is not None]
    return known if known and len(known) == len(values) else None
