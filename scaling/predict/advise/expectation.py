"""Whether a measured throughput is normal for a model, a cluster and a layout, and what if not."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.layout.axes import AXES, SETTING_AXES
from scaling.layout.layout import Layout
from scaling.layout.shapes import model_flops_per_token
from scaling.predict.advise.candidates import Search, candidates, why_none
from scaling.predict.advise.recommendation import RISKY_MARGIN, best_of, record_of
from scaling.predict.cost.interval import Z_80, chance_faster, normal_cdf
from scaling.predict.cost.model import Prediction, predict
from scaling.predict.read.calibration import Calibration
from scaling.published.table import nearest_rows

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

_SOURCES = {
    "yours": "your rows",
    "yours elsewhere": "your rows of another cluster, data sheets for its links",
    "data sheet": "data sheets; how wide: errors on published rows",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The expectation of a layout, and where a given number lies in it.

    Tokens/s are per GPU; `low` and `high` bound 80 %. `percentile` is the share of what is expected
    that is slower than the given number, in [0, 1]; `place` is `below`, `inside` or `above` the
    interval. `parts` in seconds add up to `step_time_s`. `gap_s`: given less expected step.
    `memory_used`: share of the GPU's memory, of a log if it tells it. `faster`: records of layouts,
    with their `gain` in tokens/s (0.1 is 10 %) and the `chance` that they are faster. `looks`: what
    to look at first.
    """

    model: str
    cluster: str
    gpus: int
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
    place: str
    gap_s: float
    source: str  # a key of _SOURCES
    source_words: str
    parameters_from: str
    rows_of_yours: int
    parts: Mapping[str, float]
    memory_used: float
    fits_chance: float
    published: list[dict[str, Any]]
    faster: list[dict[str, Any]]
    why_none_faster: str | None
    looks: list[str]
    assumptions: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """The given number's place in what is expected, as a sentence."""
        faster = self.percentile > 0.5
        share = self.percentile if faster else 1 - self.percentile
        often = "more than 99" if share > 0.995 else f"{100 * share:.0f}"
        return (
            f"{self.place} the interval: {'faster' if faster else 'slower'} than {often} % of what "
            "is expected"
        )


def search_around(layout: Layout, **where: Any) -> Search:
    """The search for layouts that do the work of this one, its other choices kept."""
    return Search(
        gpus=layout.world_size, seq_length=layout.seq_length, precision=layout.precision,
        global_batch_size=layout.global_batch_size, engine=layout.engine,
        setting={name: getattr(layout, name) for name in _KEPT}, **where,
    )  # fmt: skip


def expect(
    search: Search,
    layout: Layout,
    tokens_per_s_per_gpu: float,
    calibration: Calibration | None = None,
    *,
    peak_memory_bytes: int | None = None,
) -> Expectation:
    """The expectation of the layout, and where the number lies in it.

    Args:
        search: by `search_around`; without a framework it is that of the layout's engine.
        layout: how it was trained.
        tokens_per_s_per_gpu: the given number.
        calibration: rows of yours; if None, data sheets.
        peak_memory_bytes: of a GPU, as a log tells it.

    Raises:
        InputError: the cluster has fewer GPUs, or nothing can be predicted.
    """
    search.check_size()
    known = calibration or Calibration(source="", stacks={})
    search = search.with_software(calibration)
    points = search.points([layout])
    (group,) = points.groups
    prediction = predict(points, calibration)
    step_s, capacity = float(prediction.step_time_s[0]), float(prediction.capacity_bytes[0])
    tokens = float(points.tokens_per_step[0]) / layout.world_size  # a GPU's in a step
    given_step_s = tokens / tokens_per_s_per_gpu
    low, high = tokens / float(prediction.high[0]), tokens / float(prediction.low[0])
    flops = model_flops_per_token(search.shape, layout.seq_length)
    peak = group.gpu.peaks[layout.precision]
    _, stack, name = known.parameters_for(group)
    source, rows_of_yours, source_words = "data sheet", 0, _SOURCES["data sheet"]
    if stack is not None:
        source = "yours" if stack.cluster == search.cluster else "yours elsewhere"
        rows_of_yours = stack.rows_timed
        source_words = f"{_SOURCES[source]} ({rows_of_yours:,} timed, {name})"
    faster, why_none_faster = _faster(search, layout, calibration)
    used = peak_memory_bytes or float(prediction.need_bytes[0])
    given, inside = tokens_per_s_per_gpu, low <= tokens_per_s_per_gpu <= high
    told = Expectation(
        model=search.model,
        cluster=search.cluster,
        gpus=layout.world_size,
        layout=layout,
        given=given,
        given_step_time_s=given_step_s,
        given_mfu=given * flops / peak,
        given_model_flop_per_s=given * flops,
        expected=tokens / step_s,
        low=low,
        high=high,
        step_time_s=step_s,
        mfu=tokens / step_s * flops / peak,
        percentile=percentile_of(given_step_s, prediction),
        place="inside" if inside else "below" if given < low else "above",
        gap_s=given_step_s - step_s,
        source=source,
        source_words=source_words,
        parameters_from=name,
        rows_of_yours=rows_of_yours,
        parts={
            part: sum(float(prediction.time_terms[term][0]) for term in terms)
            for part, terms in PARTS.items()
        },
        memory_used=used / capacity,
        fits_chance=float(prediction.fits_chance[0]),
        published=_published(search, layout),
        faster=faster,
        why_none_faster=why_none_faster,
        looks=[],
        assumptions=points.assumptions,
    )
    if told.place == "inside":
        looks = ["nothing: the number lies inside the interval"]
    elif told.place == "above":
        looks = [*_looks_fast(told, search.site.gpus_per_node)]
    else:
        elementwise = float(prediction.time_terms["elementwise_s"][0]) / step_s
        eager = search.shape.gated_mlp and not (layout.compile or layout.fused_norm)
        if not eager or elementwise < _LARGE_ELEMENTWISE:
            norm = ""
        else:
            norm = f"{100 * elementwise:.0f} % of the step, expected " + (
                "fused" if group.features.fused_norm[0] else "unfused"
            )
        looks = [*_looks_slow(told, norm)]
    if not inside and told.memory_used > 1 and told.fits_chance < 0.5:
        looks.insert(
            0,
            f"the layout: it is expected to need {100 * told.memory_used:,.0f} % of the memory; "
            "more may be sharded or recomputed than said",
        )
    return dataclasses.replace(told, looks=looks)


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


def _published(search: Search, layout: Layout) -> list[dict[str, Any]]:
    """The nearest published rows, of each layout the fastest."""
    rows = nearest_rows(
        gpu=search.site.gpu,
        active_params=search.shape.active_params,
        precision=layout.precision,
        world_size=layout.world_size,
        experts=search.shape.num_experts > 0,
    )
    names = ("model", "world_size", "precision", "layout")
    by_layout: dict[tuple[object, ...], dict[str, Any]] = {}
    for row in rows:  # the others are older releases of the same recipe
        by_layout.setdefault(tuple(row[name] for name in names), {"label": "published", **row})
    return [*by_layout.values()][:_PUBLISHED]


def _faster(
    search: Search, layout: Layout, calibration: Calibration | None
) -> tuple[list[dict[str, Any]], str | None]:
    """Layouts of the same work that should be faster, fastest first, or why the list is empty."""
    others = [dataclasses.replace(one, attention=layout.attention) for one in candidates(search)]
    if not others:
        return [], why_none(search) or "no layout divides the GPUs and the batch"
    layouts = [layout, *(one for one in others if one != layout)]
    points = search.points(layouts)
    prediction = predict(points, calibration)
    step_s, own = float(prediction.step_time_s[0]), float(prediction.own_sigma[0])
    if not prediction.fits.any():
        return [], "no layout is expected to fit into memory"
    faster = []
    for one in best_of(search, layouts, points, prediction, _FASTER):
        if one.layout == layout:
            break  # the rest ranks below it
        gain = step_s / one.step_time_s - 1
        if gain >= _WORTH:
            own_of_one = math.hypot(one.layout_sigma, one.rest_sigma)
            chance = float(chance_faster(one.step_time_s, step_s, own_of_one, own))
            faster.append({**record_of(one), "gain": gain, "chance": chance})
    return faster, None if faster else "no other layout is expected to be faster"


def _looks_slow(told: Expectation, norm: str) -> Iterator[str]:
    """The first causes of a slow step; `norm`: how much an eager norm takes, if it is large."""
    share = {part: taken / told.step_time_s for part, taken in told.parts.items()}
    if 1 - RISKY_MARGIN < told.memory_used <= 1:
        yield (
            f"allocator retries: memory is {100 * told.memory_used:.0f} % full; see "
            "num_alloc_retries in torch.cuda.memory_stats()"
        )
    traffic = max(_TRAFFIC, key=lambda name: share[name])
    if share[traffic] >= _LARGE_TRAFFIC:
        yield (
            f"a slow link: {traffic} is {100 * share[traffic]:.0f} % of the step; at "
            f"{1 + told.gap_s / told.parts[traffic]:.1f} times its time it explains the gap"
        )
    if share["host"] >= _LARGE_HOST:
        yield (
            f"a busy host: launching kernels is {100 * share['host']:.0f} % of the "
            "step, as layers are small; try compile or a larger micro-batch"
        )
    if norm:
        yield f"an eager norm: fused_norm and compile are off; element-wise work is {norm}"
    yield "one slow GPU or host, for which all wait: `scaling probe` names slow hosts"
    yield "what else is in the time: data loading, checkpoints, evaluation, logging"


def _looks_fast(told: Expectation, gpus_per_node: int) -> Iterator[str]:
    """The first causes of a step that is faster than expected."""
    ratio, reach = told.given / told.expected, math.log(told.high / told.expected)
    counted = {
        "all GPUs": told.gpus,
        "a node": min(gpus_per_node, told.gpus),
        "a replica": told.gpus // told.layout.dp,
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
