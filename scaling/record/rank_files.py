"""What the ranks of one point leave for the process that started them: small files, each whole.

    rank<r>.beat          what the rank is doing; a new text is progress
    rank<r>.stack.json    the software and the device under it, known before the model is built
    rank<r>.result.json   its measurement
    rank<r>.records.json  of a probe: what it has measured so far
    rank<r>.failure.json  why there is none
    rank<r>.trace.json.gz the profiler's window, where the study keeps it
    store                 where rank 0 listens for the others

They lie in one folder that belongs to one run of one point. Ranks import neither pyarrow nor
anything else that would lengthen their start.
"""

import dataclasses
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from scaling.record.row import Outcome, Stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The software and the device under one rank; null for what is not there."""

    host: str
    torch_version: str
    deepspeed_version: str | None  # where that engine trains
    flash_attn_version: str | None
    gpu_name: str | None
    driver_version: str | None
    cuda_version: str | None
    nccl_version: str | None
    liger_kernel_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """What one rank measured. Seconds and bytes; losses are means over the global batch."""

    clock: str
    step_times_s: list[float]  # of the measured steps, warm-up excluded; none of a short point
    losses: list[float] | None  # of full steps from the first; None where short ones came first
    grad_norms: list[float] | None
    peak_memory_bytes: int
    peak_reserved_bytes: int | None
    memory_meter: str
    first_step_at: float  # seconds since the epoch
    warmup_steps: int | None = None  # that ran before the measured ones; None: as asked
    stopped: Stopped | None = None
    metered_steps: int | None = None  # that the energy is of; None: the measured ones
    # of short steps, in the order in which they ran: their times and their micro-batches
    short_step_times_s: list[float] | None = None
    short_accumulations: list[int] | None = None
    short_losses: list[float] | None = None  # of a smaller batch, warm-up included: in no row
    expert_imbalance: float | None = None
    foreign_memory_bytes: int | None = None
    library_memory_bytes: int | None = None
    energy_j: float | None = None  # of this rank's device over the measured steps
    mean_power_w: float | None = None
    clock_hz: float | None = None
    throttled_share: float | None = None
    # seconds of a step by the row's columns, null where the window cannot say; None: no window
    spent: dict[str, float | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """Why one rank has no result, in one line."""

    outcome: Outcome
    message: str
    failed_at: float  # seconds since the epoch: the first failure explains the others


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeEnd:
    """A rank of a probe has done all it was asked; its records say what came of it."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRecords:
    """What one rank of a probe has measured so far."""

    facts: dict[str, Any]  # of its host and device
    records: list[dict[str, Any]]


Left = TypeVar("Left", Stack, RankResult, RankFailure, ProbeEnd, ProbeRecords)


def has_stepped(doing: str) -> bool:
    """Whether a beat says that its rank has done a step; its start is over then.

    `step 0 of 25` does not: the first step may compile, and opens connections.
    """
    return re.match(r"(step [1-9]|traced step)", doing) is not None


class RankFiles:
    """Reads and writes the files of one run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def beat(self, rank: int, doing: str) -> None:
        """Say what this rank is doing now."""
        self._write(f"rank{rank}.beat", doing)

    def beats(self) -> dict[int, str]:
        """What each rank that has started was last doing."""
        return {rank: path.read_text() for rank, path in self._by_rank("beat")}

    def trace(self, rank: int) -> Path:
        """Where a rank leaves the trace of its profiler window, if that is to be kept."""
        return self.directory / f"rank{rank}.trace.json.gz"

    def write(self, rank: int, result: Left) -> None:
        """Leave this rank's result."""
        self._write(f"rank{rank}.{_SUFFIX[type(result)]}", json.dumps(dataclasses.asdict(result)))

    def read(self, kind: type[Left]) -> dict[int, Left]:
        """What `leave` wrote of this kind, by rank, of the ranks that got so far."""
        paths = self._by_rank(_SUFFIX[kind])
        return {rank: kind(**json.loads(path.read_text())) for rank, path in paths}

    def finished(self) -> frozenset[int]:
        """The ranks that have left a result, whatever is in it."""
        return frozenset(rank for rank, _ in self._by_rank(_SUFFIX[RankResult]))

    def publish_store(self, host: str, port: int) -> None:
        """Rank 0 says where the others find it."""
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
        results = [
            (int(path.name.removeprefix("rank").removesuffix(f".{suffix}")), path)
            for path in self.directory.glob(f"rank*.{suffix}")
        ]
        return sorted(results)


_SUFFIX: dict[type, str] = {
    Stack: "stack.json",
    RankResult: "result.json",
    RankFailure: "failure.json",
    ProbeEnd: "result.json",
    ProbeRecords: "records.json",
}
