"""The row of one run: what was known before, and what the ranks left."""

import dataclasses
import datetime
import math
import os
import socket
from typing import Any

from scaling.launch.judge.verdict import Verdict
from scaling.launch.provenance import provenance_of
from scaling.launch.ranks import Run
from scaling.launch.start import slurm
from scaling.record.extension import extended
from scaling.record.files import table_of
from scaling.record.interval import median_interval
from scaling.record.rank_files import RankResult
from scaling.record.row import Row, fields_of
from scaling.record.row_checks import reasons
from scaling.study.point import Point, columns_of


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
    measured = _measured(point, run) if run.verdict.outcome == "ok" else _kind_of(point)
    first = run.stacks[min(run.stacks)] if run.stacks else None
    started = datetime.datetime.fromtimestamp(run.started_at, datetime.UTC)
    values = _NOTHING | columns_of(point) | provenance_of(first) | measured
    return Row(
        **values
        | {
            "attempt": attempt,
            "outcome": run.verdict.outcome,
            "error_message": run.verdict.message,
            "duration_s": run.duration_s,
            "load_average": run.load_average,
            "hosts": _hosts(run),
            "excluded_hosts": run.excluded_hosts or None,
            "job_id": slurm.job_id(os.environ),
            "started_at": started.isoformat(timespec="seconds"),
        }
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
        "peak_reserved_bytes": max(_stated(results, "peak_reserved_bytes"), default=None),
        "expert_imbalance": max(_stated(results, "expert_imbalance"), default=None),
        "memory_meter": results[0].memory_meter,
        "foreign_memory_bytes": max(_stated(results, "foreign_memory_bytes"), default=None),
        "library_memory_bytes": max(_stated(results, "library_memory_bytes"), default=None),
        "startup_s": max(first_steps) - run.started_at if first_steps else None,
        **_drawn(results),
        **_spent(results),
    }


def _kind_of(point: Point) -> dict[str, Any]:
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
    of_ranks = _stated(results, "short_step_times_s")
    accumulations = results[0].short_accumulations
    if accumulations is None or len(of_ranks) < len(results):
        return {}
    times = _slowest(of_ranks)
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


def _stated(results: list[RankResult], name: str) -> list[Any]:
    """What the ranks that know it say."""
    return [value for result in results if (value := getattr(result, name)) is not None]


def _sum(values: list[float | None]) -> float | None:
    """Of all ranks; a sum in which one is missing is not known."""
    present = [value for value in values if value is not None]
    return math.fsum(present) if len(present) == len(values) else None


def _drawn(results: list[RankResult]) -> dict[str, float | None]:
    """Every rank has a device of its own."""
    steps = _first_known(results[0].metered_steps, len(results[0].step_times_s))
    energy_j = _sum([result.energy_j for result in results])
    return {
        "energy_j": energy_j / steps if steps and energy_j is not None else None,
        "mean_power_w": _sum([result.mean_power_w for result in results]),
        "clock_hz": min(_stated(results, "clock_hz"), default=None),
        "throttled_share": max(_stated(results, "throttled_share"), default=None),
    }


def _spent(results: list[RankResult]) -> dict[str, float | None]:
    """The mean over ranks, so that the parts of a step still add up; empty without a window."""
    windows: list[dict[str, float | None]] = _stated(results, "spent")
    if len(windows) < len(results):
        return {}
    sums = {name: _sum([each[name] for each in windows]) for name in windows[0]}
    return {name: None if of is None else of / len(results) for name, of in sums.items()}


# what was not measured is null
_NOTHING: dict[str, Any] = dict.fromkeys(
    name for name, (_, nullable) in fields_of(Row).items() if nullable
)


def _hosts(run: Run) -> list[str]:
    """Every machine once, in the order of the ranks; this one where no rank could say."""
    named = [run.stacks[rank].host for rank in sorted(run.stacks)]
    return list(dict.fromkeys(named)) or [socket.gethostname()]
