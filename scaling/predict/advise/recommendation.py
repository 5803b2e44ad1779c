"""Search every layout of a model on so many GPUs and rank what fits."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.errors import InputError, did_you_mean, shortened
from scaling.layout.axes import AXES, SETTING_AXES
from scaling.layout.layout import Layout, refusals
from scaling.layout.shapes import model_flops_per_token
from scaling.predict.advise.candidates import Search, candidates, programs_for, why_none
from scaling.predict.advise.rehearse import Rehearse, none_rehearsed, predict_rehearsed
from scaling.predict.cost.interval import chance_faster
from scaling.predict.cost.model import Prediction
from scaling.predict.read.calibration import Calibration
from scaling.predict.read.features import Points

# A layout with less of its memory left may not start: it must be clearly faster than one that
# surely does.
RISKY_MARGIN = 0.07
_RISKY_PENALTY = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """One layout for one GPU count; seconds, bytes, ratios in [0, 1], None where not known.

    `risky`: memory is within 7 % of the capacity, where an allocator may retry. `fits_chance` is
    how likely the layout fits, `memory_from` whether its memory was `rehearsed` or `predicted`.
    `beats_first`: the probability that it is faster than the layout ranked first, whose errors it
    mostly shares; 0.5 for that one.
    """

    gpus: int
    rank: int
    layout: Layout
    step_time_s: float
    low: float
    high: float
    tokens_per_s: float
    mfu: float
    memory_bytes: float
    memory_margin: float
    memory_from: str
    risky: bool
    fits_chance: float
    beats_first: float
    common_sigma: float
    layout_sigma: float
    size_sigma: float
    rest_sigma: float
    usd_per_million_tokens: float | None
    joules_per_token: float | None


# Numbers that a recommendation takes from the prediction of its layout.
_PREDICTED = (
    "step_time_s", "low", "high", "memory_bytes", "memory_margin", "fits_chance", "common_sigma",
    "layout_sigma", "size_sigma", "rest_sigma",
)  # fmt: skip


class NoLayoutError(InputError):
    """No layout runs on this GPU count, or none fits into its memory; others may have one."""


def recommend(
    search: Search,
    calibration: Calibration | None = None,
    *,
    top: int = 3,
    rehearse: Rehearse[Layout] = none_rehearsed,
) -> list[Recommendation]:
    """The best layouts, at most `top`, fastest first.

    Layouts are ordered by predicted time plus what stalls and a nearly full memory may cost.
    Without a calibration data sheets are the source.

    Raises:
        NoLayoutError: no layout runs on so many GPUs, or none fits into memory.
        InputError: the cluster cannot give so many GPUs or has no rate for the precision.
    """
    search.check_size()
    _check_setting(search)
    search = search.with_software(calibration)
    model, gpus = search.model, search.gpus
    layouts = list(candidates(search))
    if not layouts:
        if reason := why_none(search):
            able = " or ".join(f"--engine {name}" for name in programs_for(search))
            raise InputError(f"--model {model}: {reason}" + (f"; give {able}" if able else ""))
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
        rehearse=lambda rows: rehearse([layouts[row] for row in rows]),
    )
    best = best_of(search, layouts, points, prediction, top)
    if not best:
        least = float(np.min(prediction.need_bytes)) / 2**30
        raise NoLayoutError(
            f"--gpus {gpus}: none of {len(layouts)} layouts of {model} fits: the smallest "
            f"needs {least:.0f} GiB of {float(prediction.capacity_bytes[0]) / 2**30:.0f} a GPU"
        )
    return best


def _check_setting(search: Search) -> None:
    """Refuse choices on axes that are not of the work, or that the model cannot have."""
    for name in search.setting.keys() - {*SETTING_AXES}:
        raise InputError(f"--setting {shortened(name)}: {did_you_mean(name[:60], SETTING_AXES)}")
    smallest = Layout(seq_length=1)
    without = set(refusals(search.shape, smallest))
    for reason in refusals(search.shape, dataclasses.replace(smallest, **search.setting)):
        if reason not in without:
            raise InputError(f"--setting: {reason}")


def best_of(
    search: Search, layouts: Sequence[Layout], points: Points, prediction: Prediction, top: int
) -> list[Recommendation]:
    """The `top` layouts of a search that fit, fastest first."""
    order = _fitting(prediction)[:top]
    if not order:
        return []
    site, gpu = points.groups[0].cluster, points.groups[0].gpu
    peak = gpu.peaks[layouts[0].precision] * search.gpus
    flops_per_token = model_flops_per_token(search.shape, search.seq_length)
    price, power = site.usd_per_gpu_hour, gpu.tdp_w
    predicted = {name: getattr(prediction, name)[order] for name in _PREDICTED}
    step_s = predicted["step_time_s"]
    rates = points.tokens_per_step[order] / step_s
    own = prediction.own_sigma[order]
    beats_first = chance_faster(step_s, step_s[0], own, own[0])
    return [
        Recommendation(
            gpus=search.gpus,
            rank=place + 1,
            layout=layouts[row],
            tokens_per_s=float(rate),
            mfu=float(rate * flops_per_token / peak),
            memory_from="rehearsed" if prediction.rehearsed[row] else "predicted",
            risky=bool(predicted["memory_margin"][place] < RISKY_MARGIN),
            beats_first=float(beats_first[place]),
            usd_per_million_tokens=(
                None if price is None else float(price * search.gpus / 3600 / rate * 1e6)
            ),
            joules_per_token=None if power is None else float(power * search.gpus / rate),
            **{name: float(values[place]) for name, values in predicted.items()},
        )
        for place, (row, rate) in enumerate(zip(order, rates, strict=True))
    ]


def _fitting(prediction: Prediction) -> list[int]:
    """Rows that fit, fastest first; one with little memory left must be clearly faster."""
    risky = prediction.memory_margin < RISKY_MARGIN
    ranked = np.where(risky, 1 + _RISKY_PENALTY, 1.0) * prediction.risk_adjusted_s
    order = np.argsort(np.where(prediction.fits, ranked, np.inf), kind="stable")
    rows: list[int] = order[: int(prediction.fits.sum())].tolist()
    return rows


def record_of(recommendation: Recommendation) -> dict[str, Any]:
    """A recommendation as a JSON record, the layout's axes and batch beside its own fields."""
    layout = recommendation.layout
    record = dataclasses.asdict(recommendation)
    del record["layout"]
    names = (*AXES, "dp", "gradient_accumulation_steps", "global_batch_size")
    return {**record, "label": layout.label, **{name: getattr(layout, name) for name in names}}
