"""The small files by which ranks report to the process that started them.

    task.json             the point or the probe, as it was read
    rank<r>.beat          what the rank is doing; a new text means progress
    rank<r>.stack.json    its software and device, written before the model is built
    rank<r>.timed.json    its measurement, before steps run under the profiler
    rank<r>.result.json   its measurement
    rank<r>.records.json  of a probe: what it has measured so far
    rank<r>.failure.json  why there is no result
    rank<r>.trace.json.gz the profiler's window, if the study keeps it
    store                 where rank 0 listens for the others

Each run of a point has a folder of its own, and each file is written whole or not at all. Ranks do
not import pyarrow or anything else that would slow their start.
"""

import contextlib
import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from scaling.record.row import Outcome, Stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The software and the device of one rank; null for what is absent."""

    host: str
    torch_version: str
    deepspeed_version: str | None = None  # null under the engine torch
    flash_attn_version: str | None = None
    gpu_name: str | None = None
    driver_version: str | None = None
    cuda_version: str | None = None
    nccl_version: str | None = None
    liger_kernel_version: str | None = None
    # versions of all installed packages with kernels, by name, whether the layout uses them or not
    kernel_packages: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """Measurements of one rank. Seconds and bytes; losses are means over the global batch."""

    clock: str
    step_times_s: list[float]  # of the measured full steps, warm-up excluded
    losses: list[float] | None  # of full steps, warm-up included; None if short steps came first
    grad_norms: list[float] | None
    peak_memory_bytes: int | None  # None: another program, whose log does not say it
    peak_reserved_bytes: int | None
    memory_meter: str | None
    first_step_at: float  # seconds since the epoch
    replicas_agree: bool | None = None
    warmup_steps: int | None = None  # before the measured ones; None: as configured
    stopped: Stopped | None = None
    metered_steps: int | None = None  # full steps that energy_j covers; None without any
    # short steps in the order they ran: their seconds and their micro-batches
    short_step_times_s: list[float] | None = None
    short_accumulations: list[int] | None = None
    short_losses: list[float] | None = None  # of a smaller batch, so in no row; with warm-up
    num_alloc_retries: int | None = None  # of the allocator within the measured steps
    num_ooms: int | None = None
    expert_imbalance: float | None = None
    foreign_memory_bytes: int | None = None
    library_memory_bytes: int | None = None
    energy_j: float | None = None  # of this rank's device, over the metered steps
    mean_power_w: float | None = None
    clock_hz: float | None = None
    throttled_share: float | None = None
    slowdown_share: float | None = None
    processors: dict[str, Any] | None = None  # their use within the measured steps, by anybody
    # profiled seconds of a step by column of the row, null if unknown; None: not profiled
    spent: dict[str, float | None] | None = None


@dataclass(frozen=True, slots=True)
class RankExit:
    """How a rank ended, which its starter sees; it is in no file."""

    code: int  # its exit code; -n: killed by signal n
    out_of_memory: bool = False  # the kernel's out-of-memory killer struck in its cgroup meanwhile
    lost_with: str | None = None  # what the rank was lost with, if it did not end by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """Why one rank has no result, in one line."""

    outcome: Outcome
    message: str
    failed_at: float  # seconds since the epoch; the earliest failure explains the others


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeEnd:
    """A rank of a probe has finished; its records hold the measurements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRecords:
    """Measurements of one rank of a probe so far."""

    facts: dict[str, Any]  # about its host and device
    records: list[dict[str, Any]]


Report = TypeVar("Report", Stack, RankResult, RankFailure, ProbeEnd, ProbeRecords)


def has_stepped(doing: str) -> bool:
    """Whether a beat shows that its rank has completed a step, so that its start is over.

    `step 0 of 25` does not: the first step opens connections and may compile.
    """
    return re.match(r"(step [1-9]|traced step)", doing) is not None


class RankFiles:
    """Read and write the files of one run."""

    leave_stacks = True  # whether ranks write their stacks to their logs on SIGUSR1

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def beat(self, rank: int, doing: str) -> None:
        """Report what this rank is doing now."""
        self._write(f"rank{rank}.beat", doing)

    def beats(self) -> dict[int, str]:
        """The last beat of each rank that has started, but for those being replaced right now."""
        beats = {}
        for rank, path in self._by_rank("beat"):
            with contextlib.suppress(OSError):  # NFS loses a file that another host replaces
                beats[rank] = path.read_text()
        return beats

    def write_task(self, text: str) -> Path:
        """Keep what the ranks are to do, as its own file may be written anew meanwhile."""
        self._write("task.json", text)
        return self.directory / "task.json"

    def trace(self, rank: int) -> Path:
        """The path for the trace of a rank's profiler window."""
        return self.directory / f"rank{rank}.trace.json.gz"

    def write(self, rank: int, report: Report, suffix: str | None = None) -> None:
        """Write a report of this rank."""
        name = f"rank{rank}.{suffix or _SUFFIX[type(report)]}"
        self._write(name, json.dumps(dataclasses.asdict(report)))

    def read(self, kind: type[Report], suffix: str | None = None) -> dict[int, Report]:
        """The reports of this kind by rank, of the ranks that have written one."""
        paths = self._by_rank(suffix or _SUFFIX[kind])
        return {rank: kind(**json.loads(path.read_text())) for rank, path in paths}

    def failures(self, exits: Mapping[int, RankExit]) -> dict[int, RankFailure]:
        """Why ranks failed, of those that have said so; `exits` are those that have ended."""
        return self.read(RankFailure)

    def keep(self, rank: int, result: RankResult) -> None:
        """Write what this rank has measured, in case that a step under the profiler ends it."""
        self.write(rank, result, _TIMED)

    def results(self) -> dict[int, RankResult]:
        """The results by rank; of a rank without one, what it has kept."""
        return self.read(RankResult, _TIMED) | self.read(RankResult)

    def finished(self, exits: Mapping[int, RankExit] | None = None) -> frozenset[int]:
        """The ranks that have written a result."""
        return frozenset(rank for rank, _ in self._by_rank(_SUFFIX[RankResult]))

    def timed(self) -> frozenset[int]:
        """The ranks that have kept what they measured."""
        return frozenset(rank for rank, _ in self._by_rank(_TIMED))

    def publish_store(self, host: str, port: int) -> None:
        """Tell the other ranks where rank 0 listens."""
        self._write("store", f"{host}\n{port}\n")

    def store(self) -> tuple[str, int] | None:
        """Host and port of rank 0, None until it listens."""
        try:
            host, port = (self.directory / "store").read_text().split()
        except FileNotFoundError:
            return None
        return host, int(port)

    def _write(self, name: str, text: str) -> None:
        part = self.directory / f".{name}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(self.directory / name)

    def _by_rank(self, suffix: str) -> list[tuple[int, Path]]:
        found = self.directory.glob(f"rank*.{suffix}")
        return sorted((int(path.name[4:].partition(".")[0]), path) for path in found)


_TIMED = "timed.json"
_SUFFIX: dict[type, str] = {
    Stack: "stack.json",
    RankResult: "result.json",
    RankFailure: "failure.json",
    ProbeEnd: "result.json",
    ProbeRecords: "records.json",
}
