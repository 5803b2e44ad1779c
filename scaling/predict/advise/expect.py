"""Whether a measured throughput is normal for a model, a cluster and a layout, and what if not."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from scaling.cluster.hardware import Cluster
from scaling.errors import InputError
from scaling.layout.axes import AXES, SETTING_AXES
from scaling.layout.engines import ENGINES
from scaling.layout.layout import Layout
from scaling.layout.shapes import ModelShape, model_flops_per_token
from scaling.predict.advise.candidates import Search, candidates, why_none
from scaling.predict.advise.recommend import RISKY_MARGIN, Recommendation, best_of, check_size
from scaling.predict.cost.interval import Z_80, normal_cdf
from scaling.predict.cost.model import Prediction, predict
from scaling.predict.cost.ratios import chance_faster, ratio_sigma
from scaling.predict.read.calibration import Calibration
from scaling.predict.read.clusters import cluster_named
from scaling.predict.read.features import Points
from scaling.predict.read.points import points_of_layouts
from scaling.predict.read.stacks import own_framework
from scaling.published.table import PublishedRow, nearest_rows

# A step's parts as a reader knows them, from the terms of a prediction.
PARTS = {
    "compute": ("gemm_s", "attention_s", "elementwise_s", "head_s"),
    "tensor-parallel traffic": ("tp_comm_s",),
    "expert traffic": ("ep_comm_s",),
    "pipeline traffic": ("pp_comm_s",),
    "data-parallel traffic": ("dp_comm_s",),
    "pipeline bubble": ("bubble_s",),
    "host": ("host_s",),
    "optimizer": ("optimizer_s",),
    "jitter, stalls": ("jitter_s", "stall_s"),
}
_TRAFFIC = tuple(name for name in PARTS if name.endswith("traffic"))
# Choices that the search for faster layouts leaves as they are, beside those that are on or off.
_ON_OFF = (name for name, axis in AXES.items() if axis.kind is bool and name != "sequence_parallel")
_KEPT = ("optimizer_precision", "fp8_scaling", *SETTING_AXES, *_ON_OFF)
_FASTER = 3  # layouts at most
_WORTH = 0.01  # the least gain that is told
_PUBLISHED = 2  # rows at most
# A part below this share of the step explains no slow step.
_LARGE_TRAFFIC, _LARGE_HOST, _LARGE_ELEMENTWISE = 0.05, 0.05, 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Faster:
    """A layout that should be faster; `gain` in tokens/s, 0.1 is 10 %; `chance` that it is."""

    found: Recommendation
    gain: float
    chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The expectation of a layout, and where a given number lies in it.

    Tokens/s are per GPU; `low` and `high` bound 80 %. `percentile` is the share of what is expected
    that is slower than the given number, in [0, 1]. `source`: a key of SOURCES. `parts` in seconds
    add up to `step_time_s`. `gap_s`: given less expected step. `looks`: what to look at first.
    """

    layout: Layout
    given: float
    given_step_time_s: float
    given_mfu: float
    given_model_flop_per_s: float  # of one GPU
    expected: float
    low: float
    high: float
    step_time_s: float
    mfu: float
    percentile: float
    gap_s: float
    source: str
    parameters_from: str
    rows_of_yours: int
    parts: Mapping[str, float]
    memory_used: float  # share of the GPU's memory, of the log if it tells it
    fits_chance: float
    published: list[PublishedRow]
    faster: list[Faster]
    why_none_faster: str | None
    looks: list[str]
    assumptions: tuple[str, ...]

    @property
    def place(self) -> str:
        """`below`, `inside` or `above` the 80 % interval."""
        if self.given < self.low:
            return "below"
        return "above" if self.given > self.high else "inside"


SOURCES = {
    "yours": "your rows",
    "yours elsewhere": "your rows of another cluster, data sheets for its links",
    "data sheet": "data sheets; how wide: errors on published rows",
}


def expect(
    *,
    model: str,
    shape: ModelShape,
    cluster: str,
    clusters: dict[str, Cluster],
    layout: Layout,
    tokens_per_s_per_gpu: float,
    calibration: Calibration | None = None,
    framework: str | None = None,
    peak_memory_bytes: int | None = None,
) -> Expectation:
    """The expectation of the layout, and where the number lies in it.

    Args:
        model: its name; a model that was calibrated has a narrower interval.
        shape: the model.
        cluster: its name in `clusters`, or a GPU's for the vendor's reference node.
        clusters: the site's clusters.
        layout: how it was trained.
        tokens_per_s_per_gpu: the given number.
        calibration: rows of yours; if None, data sheets.
        framework: the program, if none of the axis `engine`.
        peak_memory_bytes: of a GPU, as a log tells it.

    Raises:
        InputError: the cluster has fewer GPUs, or nothing can be predicted.
    """
    site = cluster_named(cluster, clusters)
    gpus = layout.world_size
    check_size(gpus, cluster, clusters.get(cluster, site))
    where = _Where(
        model, shape, cluster, clusters, framework or _framework(layout, cluster, calibration)
    )
    points = where.points([layout])
    if not points.groups:
        raise InputError(
            f"--cluster {cluster}: {points.note[0].removeprefix(f'cluster {cluster}: ')}"
        )
    prediction = predict(points, calibration)
    step_s, tokens = float(prediction.step_time_s[0]), float(points.tokens_per_step[0])
    given_step_s = tokens / gpus / tokens_per_s_per_gpu
    group = points.groups[0]
    peak = group.gpu.peaks[layout.precision]
    flops = model_flops_per_token(shape, layout.seq_length)
    faster, why_none_faster = _faster(where, layout, site, calibration)
    _, stack, name = (calibration or Calibration(source="", stacks={})).parameters_for(group)
    used = float(prediction.need_bytes[0] / prediction.capacity_bytes[0])
    if peak_memory_bytes is not None:
        used = peak_memory_bytes / float(prediction.capacity_bytes[0])
    own = stack is not None and stack.cluster == cluster
    told = Expectation(
        layout=layout,
        given=tokens_per_s_per_gpu,
        given_step_time_s=given_step_s,
        given_mfu=tokens_per_s_per_gpu * flops / peak,
        given_model_flop_per_s=tokens_per_s_per_gpu * flops,
        expected=tokens / gpus / step_s,
        low=tokens / gpus / float(prediction.high[0]),
        high=tokens / gpus / float(prediction.low[0]),
        step_time_s=step_s,
        mfu=tokens / gpus / step_s * flops / peak,
        percentile=percentile_of(given_step_s, prediction),
        gap_s=given_step_s - step_s,
        source="data sheet" if stack is None else "yours" if own else "yours elsewhere",
        parameters_from=name,
        rows_of_yours=0 if stack is None else stack.rows_timed,
        parts={
            part: sum(float(prediction.time_terms[term][0]) for term in terms)
            for part, terms in PARTS.items()
        },
        memory_used=used,
        fits_chance=float(prediction.fits_chance[0]),
        published=_published(where, layout, site.gpu),
        faster=faster,
        why_none_faster=why_none_faster,
        looks=[],
        assumptions=points.assumptions,
    )
    elementwise = float(prediction.time_terms["elementwise_s"][0]) / step_s
    fused = bool(group.features.fused_norm[0])
    looks = _looks(told, shape, elementwise, site.gpus_per_node, fused=fused)
    return dataclasses.replace(told, looks=list(looks))


def percentile_of(given_step_s: float, prediction: Prediction) -> float:
    """The share of expected steps that take longer than the given one.

    ln(step time) has a normal error, so wide on each side that the 80 % interval ends at 10 and
    90 %. A lossy transport's interval is wider where steps are slow.
    """
    step_s = float(prediction.step_time_s[0])
    apart = math.log(given_step_s / step_s)
    end = float(prediction.high[0] if apart > 0 else prediction.low[0])
    sigma = abs(math.log(end / step_s)) / Z_80
    return float(normal_cdf(np.asarray(-apart / sigma)))


@dataclass(frozen=True, slots=True)
class _Where:
    """The model, the cluster and the software that all layouts share."""

    model: str
    shape: ModelShape
    cluster: str
    clusters: dict[str, Cluster]
    framework: str

    def points(self, layouts: list[Layout]) -> Points:
        n = len(layouts)
        return points_of_layouts(
            layouts, [self.shape] * n, self.clusters, models=[self.model] * n,
            clusters=[self.cluster] * n, framework=self.framework,
        )  # fmt: skip


def _framework(layout: Layout, cluster: str, calibration: Calibration | None) -> str:
    """The engine as rows name it; rows of a log name the trainer itself."""
    ours = own_framework(layout.engine)
    if layout.engine in ENGINES or calibration is None or f"{ours}|{cluster}" in calibration.stacks:
        return ours
    return layout.engine


def _published(where: _Where, layout: Layout, gpu: str) -> list[PublishedRow]:
    """The nearest published rows, of each layout the fastest."""
    rows = nearest_rows(
        gpu=gpu,
        active_params=where.shape.active_params,
        precision=layout.precision,
        world_size=layout.world_size,
        experts=where.shape.num_experts > 0,
        count=20,
    )
    by_layout: dict[tuple[object, ...], PublishedRow] = {}
    for row in rows:  # the others are older releases of the same recipe
        by_layout.setdefault((row.model, row.world_size, row.precision, row.layout), row)
    return [*by_layout.values()][:_PUBLISHED]


def _faster(
    where: _Where, layout: Layout, site: Cluster, calibration: Calibration | None
) -> tuple[list[Faster], str | None]:
    """Layouts of the same work that should be faster, fastest first, or why the list is empty."""
    search = Search(
        shape=where.shape, gpus=layout.world_size, global_batch_size=layout.global_batch_size,
        seq_length=layout.seq_length, precision=layout.precision, engine=layout.engine,
        gpus_per_node=site.gpus_per_node, setting={name: getattr(layout, name) for name in _KEPT},
    )  # fmt: skip
    others = [dataclasses.replace(one, attention=layout.attention) for one in candidates(search)]
    if not others:
        return [], why_none(search) or "no layout divides the GPUs and the batch"
    layouts = [layout, *(one for one in others if one != layout)]
    points = where.points(layouts)
    prediction = predict(points, calibration)
    step_s, own = prediction.step_time_s, prediction.own_sigma
    if not prediction.fits.any():
        return [], "no layout is expected to fit into memory"
    best = best_of(layouts, points, prediction, where.shape, layout.seq_length, _FASTER)
    faster = []
    for one in best:
        if one.layout == layout:
            break  # the rest ranks below it
        if step_s[0] / one.step_time_s < 1 + _WORTH:
            continue
        sigma = ratio_sigma(math.hypot(one.layout_sigma, one.rest_sigma), float(own[0]))
        chance = float(chance_faster(one.step_time_s, float(step_s[0]), sigma))
        faster.append(Faster(found=one, gain=float(step_s[0]) / one.step_time_s - 1, chance=chance))
    return faster, None if faster else "no other layout is expected to be faster"


def _looks(
    told: Expectation, shape: ModelShape, elementwise: float, gpus_per_node: int, *, fused: bool
) -> Iterator[str]:
    """The first causes to look at, each with its reason."""
    if told.place == "inside":
        yield "nothing: the number lies inside the interval"
        return
    if told.memory_used > 1 and told.fits_chance < 0.5:
        yield (
            f"the layout: it is expected to need {100 * told.memory_used:,.0f} % of the memory; "
            "more may be sharded or recomputed than said"
        )
    if told.place == "below":
        yield from _looks_slow(told, shape, elementwise, fused=fused)
    else:
        yield from _looks_fast(told, gpus_per_node)


def _looks_slow(
    told: Expectation, shape: ModelShape, elementwise: float, *, fused: bool
) -> Iterator[str]:
    step_s, layout = told.step_time_s, told.layout
    if 1 - RISKY_MARGIN < told.memory_used <= 1:
        yield (
            f"allocator retries: memory is {100 * told.memory_used:.0f} % full; see "
            "num_alloc_retries in torch.cuda.memory_stats()"
        )
    traffic = max(_TRAFFIC, key=lambda name: told.parts[name])
    share = told.parts[traffic] / step_s
    if share >= _LARGE_TRAFFIC:
        yield (
            f"a slow link: {traffic} is {100 * share:.0f} % of the step; at "
            f"{1 + told.gap_s / told.parts[traffic]:.1f} times its time it explains the gap"
        )
    if told.parts["host"] / step_s >= _LARGE_HOST:
        yield (
            f"a busy host: launching kernels is {100 * told.parts['host'] / step_s:.0f} % of the "
            "step, as layers are small; try compile or a larger micro-batch"
        )
    eager = not (layout.compile or layout.fused_norm) and shape.gated_mlp
    if eager and elementwise >= _LARGE_ELEMENTWISE:
        expected = "expected fused" if fused else "expected unfused"
        yield (
            f"an eager norm: fused_norm and compile are off; element-wise work is "
            f"{100 * elementwise:.0f} % of the step, {expected}"
        )
    yield "one slow GPU or host, for which all wait: `scaling probe` names slow hosts"
    yield "what else is in the time: data loading, checkpoints, evaluation, logging"


def _looks_fast(told: Expectation, gpus_per_node: int) -> Iterator[str]:
    layout, ratio = told.layout, told.given / told.expected
    reach = math.log(told.high / told.expected)
    counted = {
        "all GPUs": layout.world_size,
        "a node": min(gpus_per_node, layout.world_size),
        "a replica": layout.world_size // layout.dp,
    }
    for of, count in counted.items():
        if count > 1 and abs(math.log(ratio / count)) <= reach:
            yield f"token counting: it is {ratio:.1f} times as much, as if of {of} ({count} GPUs)"
            break
    if told.given_mfu > 1:
        yield f"token counting: MFU would be {100 * told.given_mfu:.0f} %, more than the GPU has"
    yield "token counting: global batch x sequence length / seconds / GPUs, padding included"
    yield "the layout: less recomputation, another precision or fewer layers than said"
    if told.source == "data sheet":
        yield "the expectation: rows of yours by --calibration narrow it"
