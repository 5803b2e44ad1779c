"""Calibrate on measured rows: fit each stack, then learn from what the fit leaves."""

import dataclasses
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from threadpoolctl import threadpool_limits

from scaling.arrays import Flags
from scaling.predict.cost.interval import learned_errors, own_error_factor
from scaling.predict.cost.memory import memory_of
from scaling.predict.cost.step import step_of
from scaling.predict.fit.fitting import fit_memory, fit_stalls, fit_time, with_fitted
from scaling.predict.read.calibration import RANGES, Calibration, StackCalibration
from scaling.predict.read.features import Group, Points
from scaling.predict.read.given import Cells
from scaling.predict.read.observed import Observed
from scaling.predict.read.residual import fitted_residual, places_of

if TYPE_CHECKING:
    from scaling.importing.reader import Table  # it loads duckdb


def calibrate(
    points: Points,
    observed: Observed,
    *,
    source: str,
    probes: Mapping[str, Mapping[str, float]] | None = None,
) -> Calibration:
    """Fit every stack of a table: memory first, then step time given memory.

    `source` says where the rows are from. `probes` are parameters from microbenchmarks, by cluster:
    the fit starts from them, and keeps them where the rows say nothing.
    """
    stacks = {}
    for group in points.groups:
        probed = (probes or {}).get(group.cluster_name, {})
        group = dataclasses.replace(group, start={**group.start, **probed})
        rows = observed.take(group.rows)
        if rows.tells.any():
            # on matrices so small threads only wait for each other, and their number changes digits
            with threadpool_limits(1, "blas"):
                stacks[group.key] = _calibrate_stack(group, rows)
    return Calibration(source=source, stacks=stacks)


def calibrate_study(
    table: "Table",
    points: Points,
    observed: Observed,
    *,
    source: str,
    probes: Mapping[str, Mapping[str, float]] | None = None,
) -> tuple[Calibration, int]:
    """A calibration on rows of the commonest software, and how many are of other.

    No user is there to choose. A fit that fails leaves an empty calibration, which says why: what
    follows goes by data sheets.
    """
    commonest, _ = of_commonest_fingerprints(table, points, observed)
    try:
        found = calibrate(points, observed.only(commonest), source=source, probes=probes)
    except Exception as error:
        traceback.print_exc()
        found = Calibration(source=source, stacks={}, failure=f"{type(error).__name__}: {error}")
    return found, int((~commonest).sum())


def of_commonest_fingerprints(
    table: "Table", points: Points, observed: Observed
) -> tuple[Flags, str | None]:
    """Mask, (n,): all rows but those of rarer software in a stack; a sentence if there are any.

    Rows that tell nothing to a fit may be of any.
    """
    fingerprints = Cells(table).words("stack_fingerprint")
    kept, several = np.ones(len(points), dtype=bool), None
    for group in points.groups:
        rows = group.rows[observed.take(group.rows).tells & (fingerprints[group.rows] != "")]
        names, counts = np.unique(fingerprints[rows].astype(str), return_counts=True)
        if len(names) > 1:
            kept[rows] = fingerprints[rows] == names[counts.argmax()]
            several = several or (
                f"{table.source}: stack_fingerprint: {group.key} has {len(names)} of them; "
                f"choose one with --where \"stack_fingerprint = '{names[0]}'\""
            )
    return kept, several


def _calibrate_stack(group: Group, observed: Observed) -> StackCalibration:
    # sums differ by the order of rows, so it follows from the rows themselves
    order = np.lexsort((observed.step_time_s, *group.features.places()))
    order = order[observed.tells[order]]
    group = dataclasses.replace(group, rows=group.rows[order], features=group.features.take(order))
    observed = observed.take(order)
    memory = fit_memory(group, observed, group.start)
    start = with_fitted(group.start, memory)
    time = fit_time(group, observed, start)
    p, timed = with_fitted(start, time), np.flatnonzero(observed.timed)
    f, lossy = group.features.take(timed), group.cluster.lossy_transport
    used = memory_of(group, f, p).total / group.capacity_bytes
    found = fit_stalls(group, f, observed.step_time_s[timed], p, used)
    p = {**p, **found}
    step = step_of(group, f, p, used)
    log_residual = np.log(observed.step_time_s[timed] / step.total)
    residual, left_out = fitted_residual(places_of(f), log_residual)
    ranges = {}
    if len(timed):
        values = {name: getattr(f, name) for name in RANGES}
        ranges = {name: (float(v.min()), float(v.max())) for name, v in values.items()}
    return StackCalibration(
        framework=group.framework,
        cluster=group.cluster_name,
        generation=group.gpu.generation,
        rows_timed=len(timed),
        rows_out_of_memory=int(observed.out_of_memory.sum()),
        rows_with_peak_memory=int(np.isfinite(observed.peak_memory_bytes).sum()),
        parameters={**memory, **time},
        ranges=ranges,
        errors=learned_errors(left_out, own_error_factor(step), lossy=lossy),
        residual=residual,
        stalls=found,
    )
