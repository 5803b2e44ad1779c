"""Repeats where they decide: which layouts of a size run once more, round after round.

chosen/<world_size>.repeat<n>.parquet holds every point of that repeat: whether it is measured, else
why not, and the hosts that its earlier runs were on.
"""

from typing import Any

import pyarrow as pa

from scaling.analyse.being_best import UNRESOLVED, Runs, between_runs, odds_of
from scaling.errors import InputError
from scaling.run.choices import choice_table, same_layout, same_setting
from scaling.run.sweep import Sweep


def choose(sweep: Sweep, world_size: int, repeat: int) -> tuple[pa.Table, str, dict[str, str]]:
    """The choice of which layouts of a size are measured once more, a sentence, and slow nodes.

    Layouts that ran on slow nodes only are repeated too.

    Raises:
        InputError: the study repeats no contenders, or not so often.
    """
    study, repeats = sweep.study, sweep.study.measure.repeats
    if repeats.only is None or not 0 < repeat < repeats.at_most:
        raise InputError(
            f"{study.path}: measure.repeats: there is no repeat {repeat} of contenders; write "
            f"repeats: {{at_most: {max(repeat + 1, 2)}, for: contenders}}"
        )
    here = [point for point in sweep.points if point.world_size == world_size]
    runs: dict[Any, list[tuple[float, float]]] = {}  # by layout, of all sizes
    for point in sweep.points:
        if point.point_id in sweep.timed:
            runs.setdefault(same_layout(point), []).append(sweep.timed[point.point_id])
    sigma = between_runs(Runs.of([*runs.values()]))
    rivals: dict[Any, dict[Any, None]] = {}  # by setting, the layouts that ran
    hosts: dict[Any, set[str]] = {}
    for point in here:
        layout = same_layout(point)
        if layout in runs:
            rivals.setdefault(same_setting(point), {})[layout] = None
        if point.point_id in sweep.rows:
            hosts.setdefault(layout, set()).update(sweep.rows[point.point_id]["hosts"])
    probabilities: dict[Any, float] = {}
    slow = sweep.slow_hosts()
    wanted = sweep.only_on(slow, here)
    for layouts in map(list, rivals.values()):
        odds = odds_of(Runs.of([runs[layout] for layout in layouts]), sigma)
        probabilities |= dict(zip(layouts, odds.probabilities, strict=True))
        wanted |= {layouts[row] for row in odds.contenders}
    again = [point for point in here if point.repeat == repeat]
    reasons = {
        point.point_id: _reason(probabilities.get(same_layout(point)))
        for point in again
        if point.point_id not in sweep.rows and same_layout(point) not in wanted
    }
    ran_on = {p.point_id: sorted(hosts.get(same_layout(p), ())) for p in again}
    sentence = (
        f"{len(again) - len(reasons)} of {len(again)} layouts are measured once more; "
        f"runs of one layout differ by {sigma:.2%}"
    )
    return choice_table(again, reasons, {"hosts": ran_on}), sentence, slow


def _reason(probability: float | None) -> str:
    """Why a layout is not repeated."""
    if probability is None:
        return "is not repeated: no run of it gave a step time"
    if probability >= UNRESOLVED[0]:
        best = f"it is the best of its size with a probability of {probability:.0%}"
    else:
        best = f"the probability that it is the best of its size is {probability:.1%}"
    return f"is not repeated: {best}"
