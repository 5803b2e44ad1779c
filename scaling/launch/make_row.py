"""Build the row of one run from the point and from what its ranks left."""

import dataclasses
import datetime
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import scaling
from scaling.cluster.node import host_name
from scaling.cluster.processors import others_share
from scaling.launch.judge import Verdict
from scaling.launch.ranks import FinishedRun
from scaling.launch.start import slurm
from scaling.record.bootstrap import median_interval
from scaling.record.extension import estimate_full_step
from scaling.record.files import point_columns, read_row, table_of
from scaling.record.rank_files import RankResult, Stack
from scaling.record.row import Row
from scaling.record.row_checks import invalid_row_reasons
from scaling.study.point import DIGEST, Point, point_id

_PACKAGES = ("torch_version", "deepspeed_version")


def row_of(point: Point, attempt: int, run: FinishedRun) -> Row:
    """The row of a run; its measured columns are null unless every rank left a result.

    Impossible numbers turn the outcome into an error that names them. Otherwise every table would
    leave the row out, and each later run of the study would measure the point again.
    """
    row = _row(point, attempt, run)
    (reason,) = invalid_row_reasons(table_of([row]))
    if reason is None or run.verdict.outcome != "ok":
        return row
    refused = Verdict(outcome="error", message=f"what was measured cannot be: {reason}")
    return _row(point, attempt, dataclasses.replace(run, verdict=refused))


def implied_row(point: Point, attempt: int, rows: Path) -> Row | None:
    """The row of a point that need not start: with a smaller micro-batch it ran out of memory.

    All else is equal, the software and the cluster too. None if no row in `rows` shows it.
    """
    here, layout = provenance_of(None), point.layout
    sequences = layout.micro_batch_size * layout.gradient_accumulation_steps
    for size in range(layout.micro_batch_size - 1, 0, -1):
        if sequences % size:
            continue
        smaller = dataclasses.replace(
            layout, micro_batch_size=size, gradient_accumulation_steps=sequences // size
        )
        twin = dataclasses.replace(point, layout=smaller, repeat=0)
        path = rows / f"{point_id(f'{point.model}-{smaller.file_name}', twin, DIGEST)}.parquet"
        if not path.is_file():
            continue
        row = read_row(path)
        software = ("torch_version", "scaling_version")
        same = all(getattr(row, name) in (None, here[name]) for name in software)
        if row.outcome == "oom" and row.cluster == point.cluster and same:
            message = f"implied: micro_batch_size={size} ran out of memory"
            judged = Verdict(outcome="oom", message=message)
            implied = row_of(point, attempt, FinishedRun(verdict=judged))
            return dataclasses.replace(implied, implied_by=row.point_id)
    return None


def _row(point: Point, attempt: int, run: FinishedRun) -> Row:
    # the kind that a failed point is listed under
    kind = "extended" if point.accumulation == "short" else "measured"
    columns: dict[str, Any] = {"step_time_kind": kind}
    if run.verdict.outcome == "ok":
        columns |= _measured(point, run)
    hosts = [run.stacks[rank].host for rank in sorted(run.stacks)]
    started = datetime.datetime.fromtimestamp(run.started_at, datetime.UTC)
    threads = int(os.environ.get("SCALING_THREADS") or 1)  # checked when the ranks were started
    return Row(
        **point_columns(point)
        | provenance_of(_stack_of_all([*run.stacks.values()]))
        | columns
        | {
            "attempt": attempt,
            "outcome": run.verdict.outcome,
            "error_message": run.verdict.message,
            "memory_limit_bytes": run.verdict.memory_limit_bytes,
            "duration_s": run.duration_s,
            "suspended_s": sum(run.suspensions_s),
            "load_average": run.load_average,
            "threads_per_rank": threads if point.gpu == "cpu" else None,
            # each host once, in rank order; this one if no rank got so far
            "hosts": list(dict.fromkeys(hosts)) or [host_name(os.environ)],
            "excluded_hosts": run.excluded_hosts or None,
            "job_id": slurm.job_id(os.environ),
            "started_at": started.isoformat(timespec="seconds"),
        }
    )


# Values that all ranks share, and values of which the row keeps the largest of any rank.
_SHARED = ("stopped", "clock", "losses", "grad_norms", "memory_meter")
_LARGEST = (
    "peak_memory_bytes", "peak_reserved_bytes", "foreign_memory_bytes", "library_memory_bytes",
    "expert_imbalance", "throttled_share", "slowdown_share", "num_alloc_retries", "num_ooms",
)  # fmt: skip


def _measured(point: Point, run: FinishedRun) -> dict[str, Any]:
    """The measured columns: step times of the slowest rank, memory of the fullest."""
    results = [run.results[rank] for rank in sorted(run.results)]
    first = results[0]
    columns = {
        **_full_steps(results),
        **_short_steps(point, results),
        **{name: getattr(first, name) for name in _SHARED},
        **{name: max(_stated(results, name), default=None) for name in _LARGEST},
        "replicas_agree": min(_stated(results, "replicas_agree"), default=None),
        "warmup_steps": point.warmup_steps if first.warmup_steps is None else first.warmup_steps,
    }
    if run.suspensions_s:  # no measured step was suspended, but what else was is not known
        return columns
    placed = [(run.stacks[r].host, run.results[r]) for r in run.results if r in run.stacks]
    # Only ranks on the launching host: clocks of other hosts differ, and ranks step together. None
    # of them if that clock was set back.
    starts_s = [
        result.first_step_at - run.started_at
        for host, result in placed
        if host == run.launched_on and result.first_step_at >= run.started_at
    ]
    energy_j, steps = _sum([result.energy_j for result in results]), first.metered_steps
    return columns | {
        "startup_s": max(starts_s, default=None),
        # summed over ranks, as each has its own device
        "energy_j": energy_j / steps if steps and energy_j is not None else None,
        "mean_power_w": _sum([result.mean_power_w for result in results]),
        "clock_hz": min(_stated(results, "clock_hz"), default=None),
        "others_share": others_share(
            (host, result.processors) for host, result in placed if result.processors is not None
        ),
        **_mean_time_spent(results),
    }


def _slowest(of_ranks: list[list[float]]) -> list[float]:
    """Seconds of the slowest rank, step by step."""
    return [max(times) for times in zip(*of_ranks, strict=True)]


def _full_steps(results: list[RankResult]) -> dict[str, Any]:
    """Columns about full steps; only the kind where short steps replaced them."""
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
    """Columns about short steps, and the full step extended from them if they lie on a line."""
    of_ranks = _stated(results, "short_step_times_s")
    accumulations = results[0].short_accumulations
    if accumulations is None or len(of_ranks) < len(results):
        return {}
    times = _slowest(of_ranks)
    columns: dict[str, Any] = {"short_step_times_s": times, "short_accumulations": accumulations}
    extension = estimate_full_step(accumulations, times, point.layout.gradient_accumulation_steps)
    if extension is None:
        return columns
    # ranks judged linearity by the same times, and ran full steps where the test failed
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
    """The values of the ranks that know one."""
    return [value for result in results if (value := getattr(result, name)) is not None]


def _sum(values: list[float | None]) -> float | None:
    """The sum over ranks; None if a value is missing."""
    present = [value for value in values if value is not None]
    return math.fsum(present) if len(present) == len(values) else None


def _mean_time_spent(results: list[RankResult]) -> dict[str, float | None]:
    """Parts of a step, averaged over ranks so that they still add up; empty without a profile.

    With how much longer the profiled step took than the timed ones.
    """
    windows: list[dict[str, float | None]] = _stated(results, "spent")
    if len(windows) < len(results):
        return {}
    sums = {name: _sum([window[name] for window in windows]) for name in windows[0]}
    means = {name: None if total is None else total / len(results) for name, total in sums.items()}
    profiled_s = _sum([means.get(name) for name in ("compute_s", "exposed_comm_s", "idle_s")])
    times = _slowest([result.step_times_s for result in results])
    if profiled_s is not None and times:
        means["profiled_slowdown"] = profiled_s / median_interval(times).median
    return means


def _stack_of_all(stacks: list[Stack]) -> Stack | None:
    """The stack of all ranks; what differs between them (a driver) lists every value."""
    if not stacks:
        return None
    names = [field.name for field in dataclasses.fields(Stack)]
    return Stack(**{name: _of_all([getattr(stack, name) for stack in stacks]) for name in names})


def _of_all(values: list[Any]) -> Any:
    if all(value == values[0] for value in values):
        return values[0]
    if isinstance(values[0], dict):
        names = {name for value in values for name in value}
        return {name: _of_all([value.get(name) for value in values]) for name in names}
    return ", ".join(sorted({"none" if value is None else value for value in values}))


def provenance_of(stack: Stack | None) -> dict[str, Any]:
    """The row's columns about software and device, from the ranks' stack.

    Without a stack (no rank got so far) the versions are the installed ones and the device is null.
    """
    columns: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(Stack))
    columns |= {name: installed_version(name.removesuffix("_version")) for name in _PACKAGES}
    columns |= dataclasses.asdict(stack) if stack else {}
    del columns["host"]
    installed = columns.pop("kernel_packages") or {}
    columns["python_version"] = platform.python_version()
    # Packages with kernels count by what is installed: a layout that uses one and a layout that
    # does not are compared. Without any the digest is as it was before there were such columns.
    shared = columns | {"flash_attn_version": None} | installed
    del shared["liger_kernel_version"]
    return columns | {
        "stack_fingerprint": hashlib.sha256(
            json.dumps(shared, sort_keys=True).encode()
        ).hexdigest()[:12],
        "scaling_version": scaling.__version__,
        "git_commit": git_commit(Path(__file__).parents[2]),
    }


def git_commit(root: Path) -> str | None:
    """The commit of the tool's own checkout; None where the tool is installed without one.

    An installed package must not report the commit of the repository that it is installed in.
    """
    if not (root / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(root), "rev-parse", "HEAD"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # a checkout copied to a machine without git
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def installed_version(package: str) -> str | None:
    """The version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
