"""Search every layout of a model on so many GPUs and rank what fits."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from scaling.errors import InputError
from scaling.layout.axes import AXES
from scaling.layout.layout import Layout
from scaling.layout.shapes import model_flops_per_token
from scaling.predict.advise.candidates import Search, candidates, programs_for, why_none
from scaling.predict.advise.rehearse import Rehearse, none_rehearsed, predict_rehearsed
from scaling.predict.cost.interval import chance_faster
from scaling.predict.cost.model import Prediction
from scaling.predict.read.calibration import Calibration
from scaling.predict.read.features import Points
from scaling.study.point import Point

# A layout with less of its memory left may not start: it must be clearly faster than one that
# surely does.
RISKY_MARGIN = 0.07
_RISKY_PENALTY = 0.10


class Ranked(NamedTuple):
    """A layout of a search, and the facts of it as a JSON record.

    Facts are in seconds, bytes and ratios in [0, 1], None if not known. `risky`: memory is within
    7 % of the capacity, where an allocator may retry. `fits_chance` is how likely the layout fits,
    `memory_from` whether its memory was `rehearsed` or `predicted`. `beats_first`: the probability
    that it is faster than the layout ranked first, whose errors it mostly shares; 0.5 for that one.
    """

    layout: Layout
    facts: dict[str, Any]


# Facts that are numbers of the prediction, and of the layout.
_PREDICTED = (
    "step_time_s", "low", "high", "memory_bytes", "memory_margin", "fits_chance", "common_sigma",
    "layout_sigma", "size_sigma", "rest_sigma",
)  # fmt: skip
_OF_LAYOUT = ("label", *AXES, "dp", "gradient_accumulation_steps", "global_batch_size")


class NoLayoutError(InputError):
    """No layout runs on this GPU count, or none fits into its memory; others may have one."""


def recommend(
    search: Search,
    calibration: Calibration | None = None,
    *,
    top: int = 3,
    rehearse: Rehearse[Point] = none_rehearsed,
) -> list[Ranked]:
    """The best layouts, at most `top`, fastest first.

    Layouts are ordered by predicted time plus what stalls and a nearly full memory may cost.
    Without a calibration data sheets are the source.

    Raises:
        NoLayoutError: no layout of the model runs on so many GPUs, or none fits into memory.
        InputError: the cluster cannot give so many GPUs or has no rate for the precision.
    """
    search.check_size()
    search = search.with_software(calibration)
    model, gpus = search.model, search.gpus
    layouts = list(candidates(search))
    if not layouts:
        if reason := why_none(search):
            able = " or ".join(f"--engine {name}" for name in programs_for(search))
            raise NoLayoutError(f"--model {model}: {reason}" + (f"; give {able}" if able else ""))
        raise NoLayoutError(
            f"--gpus {gpus}: no layout of {model} runs on {gpus} GPUs with "
            f"global_batch_size={search.batch}; try a batch divisible by more GPUs or another "
            "engine"
        )
    points = search.points(layouts)
    prediction = predict_rehearsed(
        points,
        calibration,
        shown=lambda found: _fitting(found)[:top],
        rehearse=lambda rows: rehearse([search.point(layouts[row]) for row in rows]),
    )
    best = _best_of(search, layouts, points, prediction, top)
    if not best:
        least = float(np.min(prediction.need_bytes)) / 2**30
        raise NoLayoutError(
            f"--gpus {gpus}: none of {len(layouts)} layouts of {model} fits: the smallest "
            f"needs {least:.0f} GiB of {float(prediction.capacity_bytes[0]) / 2**30:.0f} a GPU"
        )
    return best


def _best_of(
    search: Search, layouts: Sequence[Layout], points: Points, prediction: Prediction, top: int
) -> list[Ranked]:
    """The `top` layouts of a search that fit, fastest first."""
    gpu, price = points.groups[0].gpu, search.site.usd_per_gpu_hour
    flops_per_token = model_flops_per_token(search.shape, search.seq_length)
    own, rows = prediction.own_sigma, _fitting(prediction)[:top]
    found = []
    for rank, row in enumerate(rows, start=1):
        layout, first = layouts[row], rows[0]
        facts = {name: float(getattr(prediction, name)[row]) for name in _PREDICTED}
        step_s = facts["step_time_s"]
        rate = float(points.tokens_per_step[row]) / step_s
        peak = gpu.peaks[layout.precision] * search.gpus
        beats = chance_faster(step_s, prediction.step_time_s[first], own[row], own[first])
        others = {
            "gpus": search.gpus,
            "rank": rank,
            "tokens_per_s": rate,
            "mfu": rate * flops_per_token / peak,
            "memory_from": "rehearsed" if prediction.rehearsed[row] else "predicted",
            "risky": facts["memory_margin"] < RISKY_MARGIN,
            "beats_first": float(beats),
            "usd_per_million_tokens": price and price * search.gpus / 3600 / rate * 1e6,
            "joules_per_token": gpu.tdp_w and gpu.tdp_w * search.gpus / rate,
        }
        of_layout = {name: getattr(layout, name) for name in _OF_LAYOUT}
        found.append(Ranked(layout, {**others, **facts, **of_layout}))
    return found


def _fitting(prediction: Prediction) -> list[int]:
    """Rows that fit, fastest first; one with little memory left must be clearly faster."""
    risky = prediction.memory_margin < RISKY_MARGIN
    ranked = np.where(risky, 1 + _RISKY_PENALTY, 1.0) * prediction.risk_adjusted_s
    order = np.argsort(np.where(prediction.fits, ranked, np.inf), kind="stable")
    rows: list[int] = order[: int(prediction.fits.sum())].tolist()
    return rows
