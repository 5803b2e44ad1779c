"""A guided sweep played through on rows that somebody measured in full."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from scaling.cluster.hardware import Cluster
from scaling.foreign.columns import Columns
from scaling.layout.shapes import ModelShape
from scaling.predict.advise.guide import Guide, choose
from scaling.predict.advise.surprise import TURNS, Seen, choose_again
from scaling.predict.cost.model import predict
from scaling.predict.fit.calibrate import calibrate
from scaling.predict.fit.validation import settings_of
from scaling.predict.read.calibration import Calibration
from scaling.predict.read.observed import observed_of
from scaling.predict.read.points import points_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What the guided sweep did at one size.

    `regrets`: for each setting of this size that somebody timed, how much slower the best layout it
    measured is than the best of all, a ratio; None where it measured none that ran.
    """

    world_size: int
    points: int
    measured: int
    gpu_hours: float  # of all points
    gpu_hours_spent: float
    regrets: tuple[float | None, ...]
    rows: tuple[int, ...] = ()  # of the table, that were measured


def play(
    table: pa.Table,
    source: str,
    guide: Guide,
    *,
    models: Mapping[str, ModelShape] | None = None,
    clusters: Mapping[str, Cluster] | None = None,
) -> list[Size]:
    """Measure size by size what `choose` asks for, calibrating on what has been measured so far.

    It chooses again within the size, twice at most. A row that ran costs its own
    measured steps, one that did not its start; a row that failed for an unknown reason is measured
    like any other and teaches nothing.
    """
    columns = Columns(table, source)
    points = points_of(columns, models=models, clusters=clusters)
    observed = observed_of(columns)
    steps = np.where(observed.timed, guide.steps * observed.step_time_s, 0.0)
    cost = points.world_size * (steps + guide.startup_s)
    measured = np.zeros(len(points), dtype=bool)
    found = []

    def learned() -> Calibration | None:
        """What has been measured so far teaches."""
        if not (measured & (observed.timed | observed.out_of_memory)).any():
            return None
        part = columns.filter(measured)
        some = points_of(part, models=models, clusters=clusters)
        return calibrate(some, observed_of(part), source=source, bands=False)

    for size in sorted(set(points.world_size.tolist())):
        prediction = predict(points, learned())
        choices = choose(
            points,
            prediction,
            int(size),
            guide,
            spent_gpu_s=float(cost[measured].sum()),
        )
        rows = [choice.row for choice in choices if choice.chosen]
        for _ in range(1 + TURNS):
            if not rows:
                break
            measured[rows] = True
            seen = Seen(
                measured=measured,
                step_time_s=np.where(observed.timed, observed.step_time_s, np.nan),
            )
            prediction = predict(points, learned())
            spent = float(cost[measured].sum())
            rows = choose_again(points, prediction, seen, size, guide, spent_gpu_s=spent)
        here = points.world_size == size
        regrets = []
        for rows in settings_of(points, here & observed.timed).values():
            at = np.array(rows)
            times = observed.step_time_s[at]
            best = float(times[measured[at]].min(initial=math.inf))
            regrets.append(best / float(times.min()) - 1 if math.isfinite(best) else None)
        found.append(
            Size(
                world_size=int(size),
                points=int(here.sum()),
                measured=int((here & measured).sum()),
                gpu_hours=float(cost[here].sum()) / 3600,
                gpu_hours_spent=float(cost[here & measured].sum()) / 3600,
                regrets=tuple(regrets),
                rows=tuple(np.flatnonzero(here & measured).tolist()),
            )
        )
    return found
