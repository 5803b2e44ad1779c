"""Whether a measured throughput is normal for a model, a cluster and a layout, and what if not."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from scaling.layout.axes import AXES, SETTING_AXES
from scaling.layout.layout import Layout
from scaling.layout.shapes import model_flops_per_token
from scaling.predict.advise.candidates import Search, why_none
from scaling.predict.advise.recommendation import RISKY_MARGIN, NoLayoutError, recommend
from scaling.predict.cost.interval import Z_80, chance_faster, normal_cdf
from scaling.predict.cost.model import Prediction, predict
from scaling.predict.read.calibration import Calibration
from scaling.published.table import nearest_rows
from scaling.study.point import stored_fields

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
_KEPT = ("attention", "optimizer_precision", "fp8_scaling", *SETTING_AXES, *_ON_OFF)
_FASTER = 3  # layouts at most
_WORTH = 0.01  # the least gain that is told
_PUBLISHED = 2  # rows at most
# A part below this share of the step explains no slow step.
_LARGE_TRAFFIC, _LARGE_HOST, _LARGE_ELEMENTWISE = 0.05, 0.05, 0.03


def expect(
    search: Search,
    layout: Layout,
    given: float | None,
    calibration: Calibration | None = None,
    *,
    step_time_s: float | None = None,
    peak_memory_bytes: int | None = None,
) -> dict[str, Any]:
    """The facts of the expectation of a layout, and where a given number lies in it.

    Tokens/s are per GPU; `low` and `high` bound 80 %. `percentile` is the share of what is expected
    that is slower than the given number, in [0, 1]; `place` is `below`, `inside` or `above` the
    interval. `parts` in seconds add up to `step_time_s`. `gap_s`: given less expected step.
    `memory_used`: share of the GPU's memory. `faster`: facts of layouts, with their `gain` in
    tokens/s (0.1 is 10 %) and the `chance` that they are faster. `looks`: what to look at first.

    Args:
        search: of the model on the cluster; without a framework it is that of the layout's engine.
        layout: how it was trained, whose work and choices the search takes over.
        given: tokens/s per GPU.
        calibration: rows of yours; if None, data sheets.
        step_time_s: given instead of tokens/s.
        peak_memory_bytes: of a GPU, as a log tells it.

    Raises:
        InputError: the cluster has fewer GPUs, or nothing can be predicted.
    """
    search = dataclasses.replace(
        search, gpus=layout.world_size, seq_length=layout.seq_length, precision=layout.precision,
        global_batch_size=layout.global_batch_size, engine=layout.engine,
        setting={name: getattr(layout, name) for name in _KEPT},
    ).with_software(calibration)  # fmt: skip
    search.check_size()
    points = search.points([layout])
    (group,) = points.groups
    prediction = predict(points, calibration)
    step_s = float(prediction.step_time_s[0])
    tokens = float(points.tokens_per_step[0]) / layout.world_size  # a GPU's in a step
    if given is None:
        assert step_time_s is not None
        given = tokens / step_time_s
    low, high = tokens / float(prediction.high[0]), tokens / float(prediction.low[0])
    flops = model_flops_per_token(search.shape, layout.seq_length)
    peak = group.gpu.peaks[layout.precision]
    known = calibration or Calibration(source="", stacks={})
    _, stack, name = known.parameters_for(group)
    source, source_words = "data sheet", "data sheets; how wide: errors on published rows"
    if stack is not None:
        here = stack.cluster == search.cluster
        source = "yours" if here else "yours elsewhere"
        elsewhere = "" if here else " of another cluster, data sheets for its links"
        source_words = f"your rows{elsewhere} ({stack.rows_timed:,} timed, {name})"
    inside, percentile = low <= given <= high, percentile_of(tokens / given, prediction)
    place = "inside" if inside else "below" if given < low else "above"
    share = max(percentile, 1 - percentile)
    often = "more than 99" if share > 0.995 else f"{100 * share:.0f}"
    than = "faster" if percentile > 0.5 else "slower"
    faster, why_none_faster = _faster(search, layout, prediction, calibration)
    used = peak_memory_bytes or float(prediction.need_bytes[0])
    facts: dict[str, Any] = {
        "model": search.model,
        "cluster": search.cluster,
        "gpus": layout.world_size,
        "layout": stored_fields(layout),
        "label": layout.label,
        "given": given,
        "given_step_time_s": tokens / given,
        "given_mfu": given * flops / peak,
        "given_model_flop_per_s": given * flops,  # of one GPU
        "expected": tokens / step_s,
        "low": low,
        "high": high,
        "step_time_s": step_s,
        "mfu": tokens / step_s * flops / peak,
        "percentile": percentile,
        "place": place,
        "verdict": f"{place} the interval: {than} than {often} % of what is expected",
        "gap_s": tokens / given - step_s,
        "source": source,
        "source_words": source_words,
        "parameters_from": name,
        "rows_of_yours": 0 if stack is None else stack.rows_timed,
        "parts": {
            part: sum(float(prediction.time_terms[term][0]) for term in terms)
            for part, terms in PARTS.items()
        },
        "memory_used": used / float(prediction.capacity_bytes[0]),
        "fits_chance": float(prediction.fits_chance[0]),
        "published": _published(search, layout),
        "faster": faster,
        "why_none_faster": why_none_faster,
        "assumptions": points.assumptions,
    }
    eager = search.shape.gated_mlp and not (layout.compile or layout.fused_norm)
    elementwise = float(prediction.time_terms["elementwise_s"][0]) / step_s if eager else 0.0
    expected_norm = "fused" if group.features.fused_norm[0] else "unfused"
    return facts | {"looks": [*_looks(facts, search, layout, elementwise, expected_norm)]}


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
    search: Search, layout: Layout, prediction: Prediction, calibration: Calibration | None
) -> tuple[list[dict[str, Any]], str | None]:
    """Layouts of the same work that should be faster, fastest first, or why the list is empty."""
    try:
        best = recommend(search, calibration, top=_FASTER)
    except NoLayoutError as none:
        return [], why_none(search) or str(none)
    step_s, own = float(prediction.step_time_s[0]), float(prediction.own_sigma[0])
    faster = []
    for other, facts in best:
        if other == layout:
            break  # the rest ranks below it
        gain = step_s / facts["step_time_s"] - 1
        if gain >= _WORTH:
            own_of_other = math.hypot(facts["layout_sigma"], facts["rest_sigma"])
            chance = float(chance_faster(facts["step_time_s"], step_s, own_of_other, own))
            faster.append({**facts, "gain": gain, "chance": chance})
    return faster, None if faster else "no other layout is expected to be faster"


def _looks(
    told: Mapping[str, Any], search: Search, layout: Layout, elementwise: float, expected_norm: str
) -> Iterator[str]:
    """The first things to look at; `elementwise` is the share of that work beside an eager norm."""
    if told["place"] == "inside":
        yield "nothing: the number lies inside the interval"
        return
    used, parts, step_s = told["memory_used"], told["parts"], told["step_time_s"]
    if used > 1 and told["fits_chance"] < 0.5:
        yield (
            f"the layout: it is expected to need {100 * used:,.0f} % of the memory; "
            "more may be sharded or recomputed than said"
        )
    if told["place"] == "above":
        yield from _looks_fast(told, layout, search.site.gpus_per_node)
        return
    if 1 - RISKY_MARGIN < used <= 1:
        yield (
            f"allocator retries: memory is {100 * used:.0f} % full; see "
            "num_alloc_retries in torch.cuda.memory_stats()"
        )
    traffic = max(_TRAFFIC, key=lambda name: parts[name])
    if parts[traffic] / step_s >= _LARGE_TRAFFIC:
        yield (
            f"a slow link: {traffic} is {100 * parts[traffic] / step_s:.0f} % of the step; at "
            f"{1 + told['gap_s'] / parts[traffic]:.1f} times its time it explains the gap"
        )
    if parts["host"] / step_s >= _LARGE_HOST:
        yield (
            f"a busy host: launching kernels is {100 * parts['host'] / step_s:.0f} % of the "
            "step, as layers are small; try compile or a larger micro-batch"
        )
    if elementwise >= _LARGE_ELEMENTWISE:
        yield (
            "an eager norm: fused_norm and compile are off; element-wise work is "
            f"{100 * elementwise:.0f} % of the step, expected {expected_norm}"
        )
    yield "one slow GPU or host, for which all wait: `scaling probe` names slow hosts"
    yield "what else is in the time: data loading, checkpoints, evaluation, logging"


def _looks_fast(told: Mapping[str, Any], layout: Layout, gpus_per_node: int) -> Iterator[str]:
    """The first causes of a step that is faster than expected."""
    ratio, reach = told["given"] / told["expected"], math.log(told["high"] / told["expected"])
    gpus = layout.world_size
    counted = {
        "all GPUs": gpus, "a node": min(gpus_per_node, gpus), "a replica": gpus // layout.dp
    }  # fmt: skip
    for of, count in counted.items():
        if count > 1 and abs(math.log(ratio / count)) <= reach:
            yield f"token counting: it is {ratio:.1f} times as much, as if of {of} ({count} GPUs)"
            break
    mfu = told["given_mfu"]
    if mfu > 1:
        yield f"token counting: MFU would be {100 * mfu:.0f} %, more than the GPU has"
    yield "token counting: global batch x sequence length / seconds / GPUs, padding included"
    yield "the layout: less recomputation, another precision or fewer layers than said"
    if told["source"] == "data sheet":
        yield "the expectation: rows of yours by --calibration narrow it"
