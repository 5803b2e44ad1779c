"""The row of one run: what was known before, and what the ranks left."""

import dataclasses
import datetime
import math
import os
import socket
from typing import Any, TypeVar

from scaling.launch.judge.verdict import Verdict
from scaling.launch.provenance import provenance_of
from scaling.launch.ranks import Run
from scaling.launch.start import slurm
from scaling.record.extension import extended
from scaling.record.files import table_of
from scaling.record.interval import median_interval
from scaling.record.rank_files import RankResult
from scaling.record.row import Row
from scaling.record.row_checks import reasons
from scaling.study.point import Point, columns_of

Known = TypeVar("Known", int, float)


def row_of(point: Point, attempt: int, run: Run) -> Row:
    """The row: the measured part is null unless every rank left its result.

    Numbers that cannot be are an error that says so. No table would take such a row, and its point
    would run again each time that the study does.
    """
    row = _row(point, attempt, run)
    (reason,) = reasons(table_of([row]))
    if reason is None or run.verdict.outcome != "ok":
        return row
    refused = Verdict(outcome="error", message=f"what was measured cannot be: {reason}")
    return _row(point, attempt, dataclasses.replace(run, verdict=refused))


def _row(point: Point, attempt: int, run: Run) -> Row:
    ok = run.verdict.outcome == "ok"
    first = run.stacks[min(run.stacks)] if run.stacks else None
    started = datetime.datetime.fromtimestamp(run.started_at, datetime.UTC)
    return Row(
        **(columns_of(point) | _NOTHING | (_measured(point, run) if ok else _asked(point))),
        **provenance_of(first),
        attempt=attempt,
        outcome=run.verdict.outcome,
        error_message=run.verdict.message,
        duration_s=run.duration_s,
        load_average=run.load_average,
        hosts=_hosts(run),
        excluded_hosts=run.excluded_hosts or None,
        job_id=slurm.job_id(os.environ),
        started_at=started.isoformat(timespec="seconds"),
    )


def _measured(point: Point, run: Run) -> dict[str, Any]:
    """A step lasts as long as on its slowest rank; memory is that of the fullest one."""
    results = [run.results[rank] for rank in sorted(run.results)]
    # ranks step together, and other hosts have clocks of their own
    first_steps = [
        result.first_step_at
        for rank, result in run.results.items()
        if rank in run.stacks and run.stacks[rank].host == run.launched_on
    ]
    return {
        **_full_steps([result.step_times_s for result in results]),
        **_short_steps(point, results),
        "warmup_steps": _first_known(results[0].warmup_steps, point.warmup_steps),
        "stopped": results[0].stopped,
        "clock": results[0].clock,
        "losses": results[0].losses,
        "grad_norms": results[0].grad_norms,
        "peak_memory_bytes": max(result.peak_memory_bytes for result in results),
        "peak_reserved_bytes": _largest([result.peak_reserved_bytes for result in results]),
        "expert_imbalance": _largest([result.expert_imbalance for result in results]),
        "memory_meter": results[0].memory_meter,
        "foreign_memory_bytes": _largest([result.foreign_memory_bytes for result in results]),
        "library_memory_bytes": _largest([result.library_memory_bytes for result in results]),
        "startup_s": max(first_steps) - run.started_at if first_steps else None,
        **_drawn(results),
        **_spent(results),
    }


def _asked(point: Point) -> dict[str, Any]:
    """Of a failure: among which of the two kinds it stands."""
    return {"step_time_kind": "extended" if point.accumulation == "short" else "measured"}


def _slowest(of_ranks: list[list[float]]) -> list[float]:
    """Of each step the slowest rank's seconds."""
    return [max(times) for times in zip(*of_ranks, strict=True)]


def _full_steps(of_ranks: list[list[float]]) -> dict[str, Any]:
    """The full steps; nothing of a point whose short ones said enough."""
    step_times_s = _slowest(of_ranks)
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
    of_ranks = [result.short_step_times_s for result in results]
    accumulations = results[0].short_accumulations
    known = [times for times in of_ranks if times is not None]
    if accumulations is None or len(known) < len(results):
        return {}
    times = _slowest(known)
    raw = {"short_step_times_s": times, "short_accumulations": accumulations}
    extension = extended(accumulations, times, point.layout.gradient_accumulation_steps)
    if extension is None:
        return raw
    fits = {
        "extended_step_time_s": extension.step_time_s,
        "extended_low_s": extension.low_s,
        "extended_high_s": extension.high_s,
        "step_fixed_s": extension.fixed_s,
        "micro_batch_s": extension.micro_batch_s,
    }
    # the ranks judged by the same times, but a point without full steps has been told that it fits
    linear = extension.linear or not results[0].step_times_s
    return raw | {"extension_is_linear": linear} | (fits if linear else {})


def _first_known(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _largest(measured: list[Known | None]) -> Known | None:
    """The largest of what is known."""
    return max((each for each in measured if each is not None), default=None)


def _drawn(results: list[RankResult]) -> dict[str, float | None]:
    """Every rank has a device of its own; a sum in which one is missing is not known."""
    energy = [result.energy_j for result in results if result.energy_j is not None]
    power = [result.mean_power_w for result in results if result.mean_power_w is not None]
    clocks = [result.clock_hz for result in results if result.clock_hz is not None]
    shares = [result.throttled_share for result in results if result.throttled_share is not None]
    steps = _first_known(results[0].metered_steps, len(results[0].step_times_s))
    return {
        "energy_j": math.fsum(energy) / steps if steps and len(energy) == len(results) else None,
        "mean_power_w": math.fsum(power) if len(power) == len(results) else None,
        "clock_hz": min(clocks, default=None),
        "throttled_share": max(shares, default=None),
    }


def _spent(results: list[RankResult]) -> dict[str, float | None]:
    """The mean over ranks, so that the parts of a step still add up; empty without a window."""
    measured = [result.spent for result in results if result.spent is not None]
    if len(measured) < len(results):
        return {}
    return {name: _mean([each[name] for each in measured]) for name in measured[0]}


def _mean(values: list[float | None]) -> float | None:
    """Of all ranks; a mean in which one is missing is not known."""
    measured = [value for value in values if value is not None]
    return math.fsum(measured) / len(measured) if len(measured) == len(values) else None


_NOTHING: dict[str, Any] = dict.fromkeys(
    (
        "clock",
        "step_times_s",
        "step_time_s",
        "step_time_low_s",
        "step_time_high_s",
        "losses",
        "grad_norms",
        "peak_memory_bytes",
        "peak_reserved_bytes",
        "memory_meter",
        "startup_s",
        "compute_s",
        "comm_s",
        "exposed_comm_s",
        "idle_s",
        "energy_j",
        "mean_power_w",
    )
)


def _hosts(run: Run) -> list[str]:
    """Every machine once, in the order of the ranks; this one where no rank could say."""
    named = [run.stacks[rank].host for rank in sorted(run.stacks)]
    return list(dict.fromkeys(named)) or [socket.gethostname()]
