"""The row of one run: what was known before, and what the ranks left."""

import dataclasses
import datetime
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import socket
import subprocess
from pathlib import Path
from typing import Any

import scaling
from scaling.launch.judge import Verdict
from scaling.launch.ranks import Run
from scaling.launch.start import slurm
from scaling.record.extension import estimate_full_step
from scaling.record.files import table_of
from scaling.record.interval import median_interval
from scaling.record.rank_files import RankResult, Stack
from scaling.record.row import Row, fields_of
from scaling.record.row_checks import invalid_row_reasons
from scaling.study.point import Point, point_columns

_PACKAGES = ("torch_version", "deepspeed_version")


def row_of(point: Point, attempt: int, run: Run) -> Row:
    """The row: the measured part is null unless every rank left its result.

    Numbers that cannot be are an error that says so. No table would take such a row, and its point
    would run again each time that the study does.
    """
    row = _row(point, attempt, run)
    (reason,) = invalid_row_reasons(table_of([row]))
    if reason is None or run.verdict.outcome != "ok":
        return row
    refused = Verdict(outcome="error", message=f"what was measured cannot be: {reason}")
    return _row(point, attempt, dataclasses.replace(run, verdict=refused))


def _row(point: Point, attempt: int, run: Run) -> Row:
    # of a failure: among which of the two kinds it stands
    kind = "extended" if point.accumulation == "short" else "measured"
    columns: dict[str, Any] = {"step_time_kind": kind}
    if run.verdict.outcome == "ok":
        columns |= _measured(point, run)
    hosts = [run.stacks[rank].host for rank in sorted(run.stacks)]
    started = datetime.datetime.fromtimestamp(run.started_at, datetime.UTC)
    unmeasured: dict[str, Any] = dict.fromkeys(
        name for name, (_, nullable) in fields_of(Row).items() if nullable
    )
    return Row(
        **unmeasured
        | point_columns(point)
        | provenance_of(run.stacks[min(run.stacks)] if run.stacks else None)
        | columns
        | {
            "attempt": attempt,
            "outcome": run.verdict.outcome,
            "error_message": run.verdict.message,
            "duration_s": run.duration_s,
            "load_average": run.load_average,
            # every machine once, in the order of the ranks; this one where no rank could say
            "hosts": list(dict.fromkeys(hosts)) or [socket.gethostname()],
            "excluded_hosts": run.excluded_hosts or None,
            "job_id": slurm.job_id(os.environ),
            "started_at": started.isoformat(timespec="seconds"),
        }
    )


# What all ranks share, and of what each has its own the largest that any of them states.
_SHARED = ("stopped", "clock", "losses", "grad_norms", "memory_meter")
_LARGEST = (
    "peak_memory_bytes", "peak_reserved_bytes", "foreign_memory_bytes", "library_memory_bytes",
    "expert_imbalance", "throttled_share",
)  # fmt: skip


def _measured(point: Point, run: Run) -> dict[str, Any]:
    """A step lasts as long as on its slowest rank; memory is that of the fullest one."""
    results = [run.results[rank] for rank in sorted(run.results)]
    first = results[0]
    # ranks step together, and other hosts have clocks of their own
    first_steps = [
        result.first_step_at
        for rank, result in run.results.items()
        if rank in run.stacks and run.stacks[rank].host == run.launched_on
    ]
    # every rank has a device of its own
    energy_j = _sum([result.energy_j for result in results])
    steps = len(first.step_times_s) if first.metered_steps is None else first.metered_steps
    warmup = first.warmup_steps
    return {
        **_full_steps(results),
        **_short_steps(point, results),
        **{name: getattr(first, name) for name in _SHARED},
        **{name: max(_stated(results, name), default=None) for name in _LARGEST},
        "warmup_steps": point.warmup_steps if warmup is None else warmup,
        "startup_s": max(first_steps) - run.started_at if first_steps else None,
        "energy_j": energy_j / steps if steps and energy_j is not None else None,
        "mean_power_w": _sum([result.mean_power_w for result in results]),
        "clock_hz": min(_stated(results, "clock_hz"), default=None),
        **_spent(results),
    }


def _slowest(of_ranks: list[list[float]]) -> list[float]:
    """Of each step the slowest rank's seconds."""
    return [max(times) for times in zip(*of_ranks, strict=True)]


def _full_steps(results: list[RankResult]) -> dict[str, Any]:
    """The full steps; nothing of a point whose short ones said enough."""
    step_times_s = _slowest([result.step_times_s for result in results])
    if not step_times_s:
        return {"step_time_kind": "extended"}
    interval = median_interval(step_times_s)
    return {
        "step_time_kind": "measured",
        "step_times_s": step_times_s,
        "step_time_s": interval.median,
        "step_time_low_s": interval.low,
        "step_time_high_s": interval.high,
    }


def _short_steps(point: Point, results: list[RankResult]) -> dict[str, Any]:
    """The short steps, and what they say of the full one where they lie on a line."""
    of_ranks = _stated(results, "short_step_times_s")
    accumulations = results[0].short_accumulations
    if accumulations is None or len(of_ranks) < len(results):
        return {}
    times = _slowest(of_ranks)
    columns: dict[str, Any] = {"short_step_times_s": times, "short_accumulations": accumulations}
    extension = estimate_full_step(accumulations, times, point.layout.gradient_accumulation_steps)
    if extension is None:
        return columns
    # the ranks judged by the same times, but a point without full steps has been told that it fits
    linear = extension.linear or not results[0].step_times_s
    columns |= {"extension_is_linear": linear}
    if not linear:
        return columns
    return columns | {
        "extended_step_time_s": extension.step_time_s,
        "extended_low_s": extension.low_s,
        "extended_high_s": extension.high_s,
        "step_fixed_s": extension.fixed_s,
        "micro_batch_s": extension.micro_batch_s,
    }


def _stated(results: list[RankResult], name: str) -> list[Any]:
    """What the ranks that know it say."""
    return [value for result in results if (value := getattr(result, name)) is not None]


def _sum(values: list[float | None]) -> float | None:
    """Of all ranks; a sum in which one is missing is not known."""
    present = [value for value in values if value is not None]
    return math.fsum(present) if len(present) == len(values) else None


def _spent(results: list[RankResult]) -> dict[str, float | None]:
    """The mean over ranks, so that the parts of a step still add up; empty without a window."""
    windows: list[dict[str, float | None]] = _stated(results, "spent")
    if len(windows) < len(results):
        return {}
    sums = {name: _sum([each[name] for each in windows]) for name in windows[0]}
    return {name: None if of is None else of / len(results) for name, of in sums.items()}


def provenance_of(stack: Stack | None) -> dict[str, Any]:
    """The row's columns about the software and the device, from one rank's stack.

    Without one (no rank got that far) the versions are the installed ones and the device is null.
    """
    columns: dict[str, Any] = dict.fromkeys(each.name for each in dataclasses.fields(Stack))
    columns |= {name: _installed(name.removesuffix("_version")) for name in _PACKAGES}
    columns |= dataclasses.asdict(stack) if stack else {}
    del columns["host"]
    columns["python_version"] = platform.python_version()
    # without what came later and is not there: older rows of the same stack share the digest
    later = ("liger_kernel_version",)
    shared = {name: fact for name, fact in columns.items() if fact or name not in later}
    return columns | {
        "stack_fingerprint": fingerprint(shared),
        "scaling_version": scaling.__version__,
        "git_commit": git_commit(Path(__file__).parents[2]),
    }


def fingerprint(columns: dict[str, Any]) -> str:
    """A short digest of what rows must share to be averaged; host names are no part of it."""
    return hashlib.sha256(json.dumps(columns, sort_keys=True).encode()).hexdigest()[:12]


def git_commit(root: Path) -> str | None:
    """The commit of the tool's own checkout; None where it is installed without one.

    A package in the environment of somebody's repository must not report that repository's commit.
    """
    if not (root / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(root), "rev-parse", "HEAD"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # a checkout copied to a machine without git
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
