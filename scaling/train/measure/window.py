"""Split the steps of a profiler window into computing, communicating and idling.

Pure: a trace's events in, seconds out. On a GPU both are kernels on the device. On a CPU computing
is torch's operators, and communicating is gloo's spans on threads of its own. A gloo span begins
when this rank is ready and ends when the data have arrived. Like an NCCL kernel it includes the
wait for slower ranks.
"""

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# [n, 2] of starts and ends in seconds, in any order, overlapping or not
Spans = npt.NDArray[np.float64]

STEP = "scaling.step"  # annotates one drained step of the window
OPTIMIZER = "scaling::optimizer"  # annotates what a step does once, after its micro-batches
LAUNCH = "scaling.launch"  # annotates a call that starts a communication: LAUNCH|kind|axis

COMPUTING = ("aten::", "graph_")  # operators of torch and of its compiler, on a CPU
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast")
AXES = ("tp", "cp", "ep", "dp", "pp")

# From a step's last kernel to its end, which is the host's work: a share of the step, or seconds,
# as the host ends a tiny model's step when its kernels are long done.
_LONGEST_TAIL, _LONGEST_TAIL_S = 0.1, 0.01

# Kinds by what the names of NCCL's kernels contain, as AllReduce, and by the names of gloo's spans.
_NCCL_KINDS = {kind.title().replace("_", ""): kind for kind in KINDS}
_GLOO_TRANSFERS = ("gloo:send", "gloo:recv")
_GLOO_KINDS = {f"gloo:{kind}": kind for kind in KINDS} | dict.fromkeys(_GLOO_TRANSFERS, "send_recv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of a trace. Seconds on one clock.

    Kineto draws an annotation of the host again on the device, with the same `id`: from the first
    kernel for which it is the innermost one to the end of the last.
    """

    name: str
    start: float
    end: float
    thread: int = 0  # that called it
    on_device: bool = False
    annotation: bool = False
    id: int = 0


@dataclass(frozen=True, slots=True)
class Communication:
    """One collective or transfer on this rank.

    None where the trace does not tell; an axis of "" is not in `AXES`.
    """

    start: float
    end: float
    kind: str | None
    axis: str | None


def unusable_reason(events: Sequence[Event], *, on_gpu: bool) -> str | None:
    """Why this window cannot be split, in a sentence; None if it can.

    A step ends with a drained device, so its last kernel ends shortly before it. Kineto drops
    events once its buffer is full, and the missing kernels would look like idle time.
    """
    steps = _steps(events)
    if not steps:
        return f"the profiler's trace holds no {STEP!r}"
    if not on_gpu:
        return None
    kernels = _spans(event for event in events if _is_kernel(event))
    if not len(kernels):
        return "the profiler saw no kernel: CUPTI is missing, or is not permitted here"
    for step in steps:
        in_step = kernels[(kernels[:, 0] >= step.start) & (kernels[:, 0] <= step.end)]
        last = in_step[:, 1].max(initial=step.start)
        # an optimizer on the host works while the device idles
        optimizing = _spans(e for e in events if e.name == OPTIMIZER and not e.on_device)
        tail_s = uncovered_s(as_spans([(last, step.end)]), optimizing)
        step_s = step.end - step.start
        if tail_s > max(_LONGEST_TAIL * step_s, _LONGEST_TAIL_S):
            return (
                f"the profiler saw no kernel in the last {tail_s / step_s:.0%} of a step: its "
                "buffer was full, or the host worked on alone"
            )
    return None


def split_step_time(events: Sequence[Event]) -> dict[str, float | None]:
    """Seconds per step on this rank, by column of the row; None where the trace does not tell.

    compute_s + exposed_comm_s + idle_s is the time of a step under the profiler. Overlapping
    communication counts once within a kind or an axis, so kinds need not add up to comm_s.
    optimizer_s covers all that the optimizer does: computing, communicating and waiting.

    Raises:
        ValueError: the events hold no step.
    """
    steps = _steps(events)
    if not steps:
        raise ValueError(f"the trace holds no {STEP!r}")
    on_device = any(_is_kernel(event) for event in events)
    computing = _computing(events, on_device=on_device)
    communications = _nccl_communications(events) if on_device else _gloo_communications(events)
    marks = _optimizer_marks(events, on_device=on_device)

    def spans_in_window(chosen: Iterable[Event | Communication]) -> Spans:
        return clip(_spans(chosen), window)

    window = _spans(steps)
    compute, all_comm = spans_in_window(computing), spans_in_window(communications)
    exposed_s = uncovered_s(all_comm, compute)
    seconds: dict[str, float | None] = {
        "compute_s": covered_s(compute),
        "comm_s": covered_s(all_comm),
        "exposed_comm_s": exposed_s,
        "idle_s": max(0.0, covered_s(window) - covered_s(compute) - exposed_s),
    }
    for kind in KINDS:
        of_kind = spans_in_window(comm for comm in communications if comm.kind == kind)
        seconds[f"{kind}_s"] = covered_s(of_kind)
    # without an annotation a kernel of NCCL may be of any axis
    unknown = on_device and any(comm.axis is None for comm in communications)
    for axis in AXES:
        on_axis = spans_in_window(comm for comm in communications if comm.axis == axis)
        seconds[f"{axis}_comm_s"] = None if unknown else covered_s(on_axis)
    # Only transfers between stages wait for the pipeline. Stages also share norms and tied weights,
    # by collectives that wait for other reasons.
    transfers = (c for c in communications if c.axis == "pp" and c.kind == "send_recv")
    bubble_s = uncovered_s(spans_in_window(transfers), compute)
    seconds["pipeline_bubble_s"] = None if unknown else bubble_s
    seconds["optimizer_s"] = covered_s(spans_in_window(marks)) if marks else None
    return {name: s if s is None else s / len(steps) for name, s in seconds.items()}


def _steps(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event.name == STEP and not event.on_device]


def _optimizer_marks(events: Sequence[Event], *, on_device: bool) -> list[Event]:
    """The threads of the optimizer.

    On a GPU the host's range only covers launches, so this is what Kineto draws on the device.
    AdamW's kernels belong to an annotation of torch's own, within ours.
    """
    ranges = [event for event in events if event.name == OPTIMIZER and not event.on_device]
    if not on_device:
        return ranges
    within = {
        event.id
        for event in events
        if event.annotation and not event.on_device and any(_holds(each, event) for each in ranges)
    }
    return [e for e in events if e.annotation and e.on_device and e.id in within]


def _holds(outer: Event, inner: Event) -> bool:
    same_thread = outer.thread == inner.thread
    return same_thread and outer.start <= inner.start and inner.end <= outer.end


def _spans(events: Iterable[Event | Communication]) -> Spans:
    return as_spans((event.start, event.end) for event in events)


def _computing(events: Sequence[Event], *, on_device: bool) -> Iterable[Event]:
    """Events in which the device computes: kernels except NCCL's, or torch's operators on a CPU."""
    if on_device:
        return (event for event in events if _is_kernel(event) and not _is_nccl(event))
    gloo_threads = {e.thread for e in events if _is_gloo(e) and e.name not in _GLOO_TRANSFERS}
    return (e for e in events if e.name.startswith(COMPUTING) and e.thread not in gloo_threads)


def _nccl_communications(events: Sequence[Event]) -> list[Communication]:
    """NCCL's kernels, each with the annotated call that launched it.

    A kernel's innermost annotation is torch's own (`nccl:all_reduce`) or ours. It is drawn from the
    kernel's start, and its range on the host lies in our annotation. Our kind has precedence, as
    NCCL makes an all-to-all of sends and receives.
    """
    calls = {event.id: event for event in events if event.annotation and not event.on_device}
    drawn = {
        event.start: event.id
        for event in events
        if event.annotation and event.on_device and event.name.startswith(("nccl:", f"{LAUNCH}|"))
    }
    launches_by_thread: dict[int, list[Event]] = defaultdict(list)  # none lies within another
    for launch in _launches(events):
        launches_by_thread[launch.thread].append(launch)

    def launch_around(call: Event) -> Event | None:
        launches = launches_by_thread[call.thread]
        index = bisect.bisect_right(launches, call.start, key=lambda launch: launch.start) - 1
        return launches[index] if index >= 0 and launches[index].end >= call.start else None

    communications = []
    for kernel in filter(_is_nccl, events):
        call = calls.get(drawn.get(kernel.start, 0))
        annotation = None if call is None else launch_around(call)
        kind, axis = (None, None) if annotation is None else _kind_and_axis(annotation)
        if kind is None:
            kind = next((kind for key, kind in _NCCL_KINDS.items() if key in kernel.name), None)
        communications.append(Communication(kernel.start, kernel.end, kind, axis))
    return communications


def _gloo_communications(events: Sequence[Event]) -> list[Communication]:
    """Gloo's spans, which know neither their group nor their call.

    Calls and spans of one kind come in the same order, except that a call of another group may
    overtake. But a gloo thread serves one group for life, so all its spans get the axis that most
    of them have.
    """
    launched: dict[str | None, list[tuple[str | None, str | None]]] = defaultdict(list)
    for launch in _launches(events):
        kind, axis = _kind_and_axis(launch)
        launched[_gloo_kind(kind)].append((kind, axis))
    spans: dict[str | None, list[Event]] = defaultdict(list)
    for event in sorted(filter(_is_gloo, events), key=lambda event: event.start):
        spans[_gloo_kind(_GLOO_KINDS.get(event.name))].append(event)
    matched: list[tuple[Event, str | None, str | None]] = []
    for gloo_kind, same_kind in spans.items():
        calls = launched[gloo_kind]
        if len(calls) != len(same_kind):  # a coalesced call makes several spans: the axis is lost
            calls = [(_GLOO_KINDS.get(span.name), None) for span in same_kind]
        matched += [(s, kind, axis) for s, (kind, axis) in zip(same_kind, calls, strict=True)]
    votes: dict[int, Counter[str]] = defaultdict(Counter)
    for span, _, axis in matched:
        if axis and span.name not in _GLOO_TRANSFERS:
            votes[span.thread][axis] += 1
    axis_of_thread = {thread: of.most_common(1)[0][0] for thread, of in votes.items()}
    return [
        Communication(
            span.start, span.end, kind,
            # a transfer keeps its own axis
            axis if span.name in _GLOO_TRANSFERS else axis_of_thread.get(span.thread, axis),
        )
        for span, kind, axis in matched
    ]  # fmt: skip


def _launches(events: Sequence[Event]) -> list[Event]:
    """Annotated calls in order of time."""
    launches = [e for e in events if e.name.startswith(f"{LAUNCH}|") and not e.on_device]
    return sorted(launches, key=lambda launch: launch.start)


def _kind_and_axis(launch: Event) -> tuple[str | None, str | None]:
    """Kind and axis of an annotated call; the kind is None where the annotation leaves it empty."""
    _, kind, axis = launch.name.split("|")
    return kind or None, axis


def _gloo_kind(kind: str | None) -> str | None:
    """The kind as gloo runs it: its reduce-scatter is an all-reduce, most of it thrown away."""
    return "all_reduce" if kind == "reduce_scatter" else kind


def _is_kernel(event: Event) -> bool:
    return event.on_device and not event.annotation


def _is_nccl(event: Event) -> bool:
    return _is_kernel(event) and event.name.startswith("nccl")


def _is_gloo(event: Event) -> bool:
    return event.name.startswith("gloo:")


def as_spans(pairs: Iterable[tuple[float, float]]) -> Spans:
    """The array of these (start, end) pairs."""
    return np.array(list(pairs), dtype=np.float64).reshape(-1, 2)


def union(spans: Spans) -> Spans:
    """The same instants as disjoint spans in order; empty ones are dropped."""
    spans = spans[spans[:, 1] > spans[:, 0]]
    if not len(spans):
        return spans
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    latest = np.maximum.accumulate(spans[:, 1])
    begins = np.concatenate(([True], spans[1:, 0] > latest[:-1]))
    first = np.flatnonzero(begins)
    last = np.concatenate((first[1:], [len(spans)])) - 1
    return np.column_stack((spans[first, 0], latest[last]))


def covered_s(spans: Spans) -> float:
    """Seconds that at least one span covers."""
    disjoint = union(spans)
    return float((disjoint[:, 1] - disjoint[:, 0]).sum())


def clip(spans: Spans, window: Spans) -> Spans:
    """The parts of the spans that lie within the window, disjoint and in order."""
    inner, outer = union(spans), union(window)
    parts = [
        np.column_stack((np.maximum(inner[:, 0], start), np.minimum(inner[:, 1], end)))
        for start, end in outer
    ]
    return union(np.concatenate(parts)) if parts else as_spans([])


def uncovered_s(spans: Spans, cover: Spans) -> float:
    """Seconds that one of the spans covers and none of `cover`."""
    # the two sums are rounded, so their difference may fall below 0
    return max(0.0, covered_s(np.concatenate((spans, cover))) - covered_s(cover))
