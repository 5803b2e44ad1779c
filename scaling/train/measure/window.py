"""What the steps of a profiler window were spent on: computing, communicating, neither.

Pure: a trace's events in, seconds out. On a GPU both are kernels on the device. On a CPU computing
is torch's operators and communicating is gloo's spans, which run on threads of gloo's own; these
last from the moment the rank is ready until the data has come, so they include the wait for slower
ranks, as a NCCL kernel does.
"""

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scaling.train.measure.spans import Spans, as_spans, clip, covered_s, uncovered_s

STEP = "scaling.step"  # annotates one drained step of the window
OPTIMIZER = "scaling::optimizer"  # annotates what a step does once, after its micro-batches
LAUNCH = "scaling.launch"  # annotates a call that starts a communication: LAUNCH|kind|axis

COMPUTING = ("aten::", "graph_")  # operators of torch and of its compiler, on a CPU
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast")
AXES = ("tp", "cp", "ep", "dp", "pp")

_QUIETEST_END = 0.1  # of a step, after its last kernel: what the host does then

# In the name of a kernel, as AllReduce, and of a span of gloo's.
_NCCL = {kind.title().replace("_", ""): kind for kind in KINDS}
_GLOO = {f"gloo:{kind}": kind for kind in KINDS} | {
    "gloo:send": "send_recv",
    "gloo:recv": "send_recv",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of a trace. Seconds on one clock; `id` and `linked_id` tie a kernel to its call."""

    name: str
    start: float
    end: float
    thread: int = 0  # where it was called from
    on_device: bool = False
    annotation: bool = False
    id: int = 0
    linked_id: int = 0


@dataclass(frozen=True, slots=True)
class Communication:
    """One collective or transfer on this rank; null where the trace does not tell."""

    start: float
    end: float
    kind: str | None
    axis: str | None


def unusable_reason(events: Sequence[Event], *, on_gpu: bool) -> str | None:
    """Why this window says nothing of its steps, in a sentence; None if it does.

    A step ends with a drained device, so its last kernel ends shortly before it. Kineto drops what
    comes after its buffer is full, which would pass for idleness.
    """
    steps = _steps(events)
    if not steps:
        return f"the profiler's trace holds no {STEP!r}"
    if not on_gpu:
        return None
    kernels = as_spans((each.start, each.end) for each in events if _is_kernel(each))
    if not len(kernels):
        return "the profiler saw no kernel: CUPTI is missing, or is not permitted here"
    for step in steps:
        within = kernels[(kernels[:, 0] >= step.start) & (kernels[:, 0] <= step.end)]
        last = within[:, 1].max(initial=step.start)
        quiet = (step.end - last) / (step.end - step.start)
        if quiet > _QUIETEST_END:
            return (
                f"the last kernel that the profiler saw of a step ended {quiet:.0%} of it before "
                "its end: its buffer was full, or the host worked on alone"
            )
    return None


def split_step_time(events: Sequence[Event]) -> dict[str, float | None]:
    """Seconds per step of one rank, by the name of the row's column; null where nothing says.

    compute_s + exposed_comm_s + idle_s is the time of a step under the profiler. What overlaps is
    counted once within a kind or an axis, so kinds need not add up to comm_s. optimizer_s is of all
    three: what the optimizer computes, exchanges and waits for.

    Raises:
        ValueError: the events hold no step.
    """
    steps = _steps(events)
    if not steps:
        raise ValueError(f"the trace holds no {STEP!r}")
    window = as_spans((step.start, step.end) for step in steps)
    compute = clip(compute_spans(events), window)
    exchanges = _on_device(events) if _has_kernels(events) else _on_gloo(events)

    def spent(chosen: Iterable[Communication]) -> Spans:
        return clip(as_spans((each.start, each.end) for each in chosen), window)

    everything = spent(exchanges)
    exposed = uncovered_s(everything, compute)
    seconds: dict[str, float | None] = {
        "compute_s": covered_s(compute),
        "comm_s": covered_s(everything),
        "exposed_comm_s": exposed,
        "idle_s": max(0.0, covered_s(window) - covered_s(compute) - exposed),
    }
    for kind in KINDS:
        seconds[f"{kind}_s"] = covered_s(spent(each for each in exchanges if each.kind == kind))
    for axis in AXES:
        seconds[f"{axis}_comm_s"] = covered_s(
            spent(each for each in exchanges if each.axis == axis)
        )
    # stages also share norms and tied weights, by collectives that wait for other reasons
    between_stages = (e for e in exchanges if e.axis == "pp" and e.kind == "send_recv")
    seconds["pipeline_bubble_s"] = uncovered_s(spent(between_stages), compute)
    # on a GPU the host only launches: Kineto draws the range again on each stream of the device,
    # from the first kernel that was launched within it to the end of the last
    on_device = _has_kernels(events)
    marks = [e for e in events if e.name == OPTIMIZER and e.on_device == on_device]
    optimizing = clip(as_spans((mark.start, mark.end) for mark in marks), window)
    seconds["optimizer_s"] = covered_s(optimizing) if marks else None
    return {name: each if each is None else each / len(steps) for name, each in seconds.items()}


def _steps(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event.name == STEP and not event.on_device]


def compute_spans(events: Sequence[Event]) -> Spans:
    """When the device computed: every kernel that is not NCCL's; torch's operators on a CPU."""
    if _has_kernels(events):
        own = (event for event in events if _is_kernel(event))
        return as_spans((each.start, each.end) for each in own if not _is_nccl(each))
    gloos = {event.thread for event in events if _is_gloo(event) and not _is_transfer(event)}
    return as_spans(
        (event.start, event.end)
        for event in events
        if event.name.startswith(COMPUTING) and event.thread not in gloos
    )


def _has_kernels(events: Sequence[Event]) -> bool:
    return any(_is_kernel(event) for event in events)


def _on_device(events: Sequence[Event]) -> list[Communication]:
    """NCCL's kernels. A kernel is linked to the call that launched it, which an annotation holds.

    The annotation's kind goes first: NCCL's all-to-all is made of sends and receives.
    """
    calls = {event.id: event for event in events if not event.on_device}
    by_thread: dict[int, list[Event]] = defaultdict(list)  # annotated calls: none within another
    for event in sorted(_launches(events), key=lambda event: event.start):
        by_thread[event.thread].append(event)

    def annotated(call: Event) -> tuple[str | None, str | None]:
        own = by_thread[call.thread]
        index = bisect.bisect_right(own, call.start, key=lambda event: event.start) - 1
        if index < 0 or own[index].end < call.start:
            return None, None
        return _annotation(own[index])

    exchanges = []
    for kernel in events:
        if not _is_nccl(kernel):
            continue
        call = calls.get(kernel.linked_id)
        kind, axis = (None, None) if call is None else annotated(call)
        named = next((name for key, name in _NCCL.items() if key in kernel.name), None)
        exchanges.append(Communication(kernel.start, kernel.end, kind or named, axis))
    return exchanges


def _on_gloo(events: Sequence[Event]) -> list[Communication]:
    """Gloo's spans, which know neither group nor call.

    Calls and spans of one title come in the same order, unless a later call of another group
    overtakes. A thread of gloo serves one group for life, so the axis most of its spans have is the
    axis of all of them.
    """
    launched = defaultdict(list)
    for launch in sorted(_launches(events), key=lambda event: event.start):
        kind, axis = _annotation(launch)
        launched[_title(kind)].append((kind, axis))
    spans = defaultdict(list)
    for event in sorted(events, key=lambda event: event.start):
        if _is_gloo(event):
            spans[_title(_GLOO.get(event.name))].append(event)
    paired: list[tuple[Event, str | None, str | None]] = []
    for title, group in spans.items():
        calls = launched[title]
        if len(calls) == len(group):
            paired += [(s, kind, axis) for s, (kind, axis) in zip(group, calls, strict=True)]
        else:  # a coalesced call makes several spans: only the title is sure
            paired += [(span, _GLOO.get(span.name), None) for span in group]
    votes: dict[int, Counter[str]] = defaultdict(Counter)
    for span, _, axis in paired:
        if axis is not None and not _is_transfer(span):
            votes[span.thread][axis] += 1
    # a transfer keeps its own axis
    elected = {thread: of.most_common(1)[0][0] for thread, of in votes.items()}
    return [
        Communication(
            span.start, span.end, kind,
            axis if _is_transfer(span) else elected.get(span.thread, axis),
        )
        for span, kind, axis in paired
    ]  # fmt: skip


def _launches(events: Sequence[Event]) -> list[Event]:
    return [e for e in events if e.name.startswith(f"{LAUNCH}|") and not e.on_device]


def _annotation(launch: Event) -> tuple[str | None, str | None]:
    """Kind and axis, as the call was annotated; an empty word is null."""
    _, kind, axis = launch.name.split("|")
    return kind or None, axis or None


def _title(kind: str | None) -> str | None:
    """What gloo calls it: its reduce-scatter is an all-reduce of which most is thrown away."""
    return "all_reduce" if kind == "reduce_scatter" else kind


def _is_kernel(event: Event) -> bool:
    return event.on_device and not event.annotation


def _is_nccl(event: Event) -> bool:
    return _is_kernel(event) and event.name.startswith("nccl")


def _is_gloo(event: Event) -> bool:
    return event.name.startswith("gloo:")


def _is_transfer(event: Event) -> bool:
    return event.name in ("gloo:send", "gloo:recv")
