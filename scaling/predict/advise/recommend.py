"""Search every layout of a model on so many GPUs and rank what fits."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.cluster.hardware import Cluster, gpu_named
from scaling.errors import InputError, did_you_mean, shortened
from scaling.layout.axes import AXES, SETTING_AXES, Precision
from scaling.layout.layout import Layout, refusals
from scaling.layout.shapes import ModelShape, model_flops_per_token
from scaling.predict.advise.candidates import Search, candidates, why_none
from scaling.predict.advise.rehearse import none_rehearsed, predict_rehearsed
from scaling.predict.cost.model import Prediction
from scaling.predict.cost.ratios import chance_faster, ratio_sigma
from scaling.predict.read.calibration import Calibration
from scaling.predict.read.clusters import cluster_named
from scaling.predict.read.features import Points
from scaling.predict.read.points import points_of_layouts

# A layout with less of its memory left may not start: it must be clearly faster than one that
# surely does.
RISKY_MARGIN = 0.07
_RISKY_PENALTY = 0.10

# Tokens of a step where no batch is given: at least as for Llama 2, at most as for Llama 3 405B
# (arXiv 2307.09288, 2407.21783), between them a sequence a GPU.
_LEAST_USUAL_TOKENS, _MOST_USUAL_TOKENS = 2**22, 2**24


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


class NoLayoutError(InputError):
    """No layout runs on this GPU count, or none fits into its memory; others may have one."""


def recommend(
    *,
    model: str,
    shape: ModelShape,
    cluster: str,
    clusters: dict[str, Cluster],
    gpus: int,
    seq_length: int = 4096,
    global_batch_size: int | None = None,
    precision: Precision | None = None,
    calibration: Calibration | None = None,
    engine: str = "deepspeed",
    setting: Mapping[str, str] | None = None,
    top: int = 3,
    rehearse: Callable[[Sequence[Layout]], Sequence[float | None]] = none_rehearsed,
) -> list[Recommendation]:
    """The best layouts on so many GPUs, at most `top`, fastest first.

    Layouts are ordered by predicted time plus what stalls and a nearly full memory may cost.

    Args:
        model: its name; a model that was calibrated has a narrower interval.
        shape: the model.
        cluster: its name in `clusters`, or a GPU's for the vendor's reference node.
        clusters: the site's clusters.
        gpus: their number.
        seq_length: tokens of a sequence.
        global_batch_size: sequences of a step; `usual_batch` if None.
        precision: if None, bf16, or fp16 on a GPU that has no bf16.
        calibration: if None, data-sheet numbers.
        engine: whose layouts to search.
        setting: choices on the axes that belong to the work, where not the default (routing).
        top: layouts at most.
        rehearse: the bytes of each layout's fullest rank, None if they stay predicted.

    Raises:
        NoLayoutError: no layout runs on so many GPUs, or none fits into memory.
        InputError: the cluster cannot give so many GPUs or has no rate for the precision.
    """
    site = cluster_named(cluster, clusters)
    gpu = gpu_named(site.gpu)
    if precision is None:
        precision = gpu.usual_precision
    # of hosts, where the links of GPUs join several of them to a node
    check_size(gpus, cluster, clusters.get(cluster, site))
    checked_setting = _checked(setting or {}, shape)
    batch = global_batch_size or usual_batch(seq_length, gpus)
    search = Search(
        shape=shape, gpus=gpus, global_batch_size=batch, seq_length=seq_length,
        precision=precision, engine=engine, gpus_per_node=site.gpus_per_node,
        setting=checked_setting,
    )  # fmt: skip
    layouts = list(candidates(search))
    if not layouts:
        if reason := why_none(search):
            raise InputError(f"--model {model}: {reason}")
        raise NoLayoutError(
            f"--gpus {gpus}: no layout of {model} runs on {gpus} GPUs with "
            f"global_batch_size={batch}; try a batch divisible by more GPUs or another engine"
        )
    n = len(layouts)
    points = points_of_layouts(
        layouts, [shape] * n, clusters, models=[model] * n, clusters=[cluster] * n
    )
    if not points.groups:
        reason = points.note[0].removeprefix(f"cluster {cluster}: ")
        raise InputError(f"--cluster {cluster}: {reason}")
    prediction = predict_rehearsed(
        points,
        calibration,
        shown=lambda found: _fitting(found)[:top],
        rehearse=lambda rows: rehearse([layouts[row] for row in rows]),
    )
    best = best_of(layouts, points, prediction, shape, seq_length, top)
    if not best:
        least = float(np.min(prediction.need_bytes)) / 2**30
        raise NoLayoutError(
            f"--gpus {gpus}: none of {n} layouts of {model} fits: the smallest "
            f"needs {least:.0f} GiB of {float(prediction.capacity_bytes[0]) / 2**30:.0f} a GPU"
        )
    return best


def _checked(setting: Mapping[str, str], shape: ModelShape) -> dict[str, Any]:
    """Choices on axes that belong to the work, as values that the model can have."""
    checked = {}
    for name, choice in setting.items():
        if name not in SETTING_AXES:
            raise InputError(
                f"--setting {shortened(name)}: {did_you_mean(name[:60], SETTING_AXES)}"
            )
        values = {str(value): value for value in AXES[name].values or ()}
        if choice not in values:
            hint = did_you_mean(choice[:60], values)
            raise InputError(f"--setting {name}={shortened(choice)}: {hint}")
        checked[name] = values[choice]
    smallest = Layout(seq_length=1)
    without = set(refusals(shape, smallest))
    for reason in refusals(shape, dataclasses.replace(smallest, **checked)):
        if reason not in without:
            raise InputError(f"--setting: {reason}")
    return checked


def usual_batch(seq_length: int, gpus: int) -> int:
    """Sequences of a step where none are given: one a GPU, within 4 to 16 million tokens."""
    least, most = _LEAST_USUAL_TOKENS // seq_length, _MOST_USUAL_TOKENS // seq_length
    return max(least, min(gpus, most), 1)


def check_size(count: int, name: str, cluster: Cluster) -> None:
    """Refuse a number of GPUs that the cluster cannot give.

    Raises:
        InputError: it has fewer, or these are no whole nodes.
    """
    per_node, most = cluster.gpus_per_node, cluster.gpus_per_node * cluster.nodes
    if count > most:
        raise InputError(f"--gpus {count}: cluster {name} has {most} GPUs")
    if count > per_node and count % per_node:
        raise InputError(
            f"--gpus {count}: cluster {name} has nodes of {per_node} GPUs: give at most {per_node} "
            f"or whole nodes, e.g. {count // per_node * per_node}"
        )


def best_of(
    layouts: list[Layout],
    points: Points,
    prediction: Prediction,
    shape: ModelShape,
    seq_length: int,
    top: int,
) -> list[Recommendation]:
    """The `top` layouts that fit, fastest first, all of one size and cluster."""
    order = _fitting(prediction)
    if not order:
        return []
    cluster, gpu = points.groups[0].cluster, points.groups[0].gpu
    peak = gpu.peaks.get(layouts[0].precision)
    assert peak is not None
    flops_per_token = model_flops_per_token(shape, seq_length)
    gpus = layouts[0].world_size
    price, power = cluster.usd_per_gpu_hour, gpu.tdp_w
    step_s, own, first = prediction.step_time_s, prediction.own_sigma, order[0]
    best: list[Recommendation] = []
    for rank, row in enumerate(order[:top], 1):
        tokens_per_s = float(points.tokens_per_step[row] / step_s[row])
        sigma = ratio_sigma(own[row], own[first])
        best.append(
            Recommendation(
                gpus=gpus,
                rank=rank,
                layout=layouts[row],
                step_time_s=float(step_s[row]),
                low=float(prediction.low[row]),
                high=float(prediction.high[row]),
                tokens_per_s=tokens_per_s,
                mfu=tokens_per_s * flops_per_token / (gpus * peak),
                memory_bytes=float(prediction.memory_bytes[row]),
                memory_margin=float(prediction.memory_margin[row]),
                memory_from="rehearsed" if prediction.rehearsed[row] else "predicted",
                risky=bool(prediction.memory_margin[row] < RISKY_MARGIN),
                fits_chance=float(prediction.fits_chance[row]),
                beats_first=float(chance_faster(step_s[row], step_s[first], sigma)),
                common_sigma=float(prediction.common_sigma[row]),
                layout_sigma=float(prediction.layout_sigma[row]),
                size_sigma=float(prediction.size_sigma[row]),
                rest_sigma=float(prediction.rest_sigma[row]),
                usd_per_million_tokens=(
                    None if price is None else price * gpus / 3600 / tokens_per_s * 1e6
                ),
                joules_per_token=None if power is None else power * gpus / tokens_per_s,
            )
        )
    return best


def _fitting(prediction: Prediction) -> list[int]:
    """Rows that fit, fastest first; one with little memory left must be clearly faster."""
    risky = prediction.memory_margin < RISKY_MARGIN
    ranked = np.where(risky, 1 + _RISKY_PENALTY, 1.0) * prediction.risk_adjusted_s
    order = np.argsort(np.where(prediction.fits, ranked, np.inf), kind="stable")
    rows: list[int] = order[: int(prediction.fits.sum())].tolist()
    return rows


def record_of(recommendation: Recommendation) -> dict[str, Any]:
    """A recommendation as a JSON record, the layout's axes and batch beside its own fields."""
    record = {
        name: getattr(recommendation, name)
        for name in Recommendation.__dataclass_fields__
        if name != "layout"
    }
    layout = recommendation.layout
    names = (*AXES, "dp", "gradient_accumulation_steps", "global_batch_size")
    return {**record, "label": layout.label, **{name: getattr(layout, name) for name in names}}
