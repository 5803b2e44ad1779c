"""Predict the points of a study: memory and step time, ranking, and seconds of a whole run."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from scaling.arrays import Floats
from scaling.layout.layout import Layout
from scaling.predict.advise.rehearse import (
    Rehearse,
    nearest_first,
    none_rehearsed,
    predict_rehearsed,
)
from scaling.predict.cost.model import Prediction
from scaling.predict.read.calibration import Calibration
from scaling.predict.read.features import Points
from scaling.predict.read.points import points_of_layouts
from scaling.study.point import Point
from scaling.study.short_steps import short_step_rounds, short_step_sizes
from scaling.study.study import Study


def predict_points(
    study: Study,
    points: Sequence[Point],
    calibration: Calibration | None = None,
    *,
    layouts: Sequence[Layout] | None = None,
    rehearse: Rehearse[int] = none_rehearsed,
) -> tuple[Points, Prediction]:
    """The points as arrays, and their prediction; from data sheets without a calibration.

    `layouts` stand in for the points' own. Rows near the memory's limit are rehearsed.
    """
    checked = points_of_layouts(
        layouts or [point.layout for point in points],
        [point.shape for point in points],
        study.clusters,
        models=[point.model for point in points],
        clusters=[point.cluster for point in points],
        gpus_per_node=[point.gpus_per_node for point in points],
        point_id=[point.point_id for point in points],
    )
    return checked, predict_rehearsed(checked, calibration, nearest_first, rehearse)


def predict_run_s(study: Study, points: Sequence[Point], step_time_s: Floats) -> Floats:
    """Predicted seconds of all steps of one run of each point, without its start-up, (n,).

    `step_time_s`, (n,), is predicted for full steps. Short steps are predicted as steps of a
    smaller batch. If steps stop by themselves, the fewest are counted: on a quiet GPU these
    suffice.
    """
    measure = study.measure
    warmup, steps = measure.warmup_steps, measure.measured_steps.at_least
    seconds: Floats = np.asarray((warmup + steps) * step_time_s, dtype=np.float64)
    rows = [row for row, point in enumerate(points) if point.accumulation != "full"]
    if not rows:
        return seconds
    short = [points[row] for row in rows]
    short_steps_s = []  # of the three short steps of a round
    for turn in range(3):
        layouts = [
            dataclasses.replace(
                point.layout, gradient_accumulation_steps=short_step_sizes(point.layout)[turn]
            )
            for point in short
        ]
        short_steps_s.append(predict_points(study, short, layouts=layouts)[1].step_time_s)
    rounds_s = short_step_rounds(steps) * np.sum(short_steps_s, axis=0)
    also_full = np.array([points[row].accumulation == "both" for row in rows])
    only_short = rounds_s + warmup * short_steps_s[0]
    seconds[rows] = np.where(also_full, seconds[rows] + rounds_s, only_short)
    return seconds
