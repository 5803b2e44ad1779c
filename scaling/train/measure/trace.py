"""A short profiler window after the timed steps, read from memory."""

import contextlib
import gzip
import shutil
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch._C._autograd import _enable_profiler
from torch._C._profiler import RecordScope, _ExperimentalConfig
from torch.autograd import DeviceType  # type: ignore[attr-defined] # exported at run time
from torch.autograd.profiler import profile, record_function

from scaling.layout.layout import Layout
from scaling.train.measure.launches import annotate_launches
from scaling.train.measure.window import COMPUTING, LAUNCH, OPTIMIZER, STEP, Event

STEPS = 2
DISCARDED = 1  # steps before them, for what happens once under a profiler

# Host memory, taken only as far as it is used. By default Kineto silently stops at 128 MB, which 32
# micro-batches of a large model fill.
_BUFFER_MB = 1024
_OURS = (STEP, LAUNCH, OPTIMIZER)


@contextlib.contextmanager
def profiler_window(
    layout: Layout, device: torch.device, *, keep: Path | None = None
) -> Iterator[list[Event]]:
    """While active, profile this process; afterwards the list has the events.

    torch.profiler would import the compiler for its file's metadata, a second in every rank, so
    this uses torch's inner profiler.

    Args:
        layout: by whose axes communications are separated.
        device: on which the steps run.
        keep: a file for the compressed trace, for Chrome's or Perfetto's viewer.
    """
    events: list[Event] = []
    on_gpu = device.type == "cuda"
    profiler = profile(
        use_kineto=True,
        use_device="cuda" if on_gpu else None,
        experimental_config=kineto_options(ACTIVITIES_MAX_GPU_BUFFER_SIZE_MB=_BUFFER_MB),
    )
    # A GPU's kernels tell what a step computes. Every operator of the host beside them would be
    # gigabytes: 950 a layer and micro-batch, of 2 kB each.
    scopes = {RecordScope.USER_SCOPE} if on_gpu else set()
    enable = partial(_enable_profiler, scopes=scopes)  # type: ignore[call-arg]
    with (
        annotate_launches(layout),
        mock.patch.object(torch.autograd.profiler, "_enable_profiler", enable),
        profiler as recorded,
    ):
        yield events
    if keep is not None:
        _save(recorded, keep)
    events += to_events(recorded.kineto_results.events())


def kineto_options(**options: int) -> _ExperimentalConfig:
    """Lines of Kineto's configuration for which torch has no parameters.

    Kineto's file (KINETO_CONFIG) only applies to traces that a daemon asks for. torch's own request
    is a text into which it puts this one parameter verbatim, so the lines follow an empty one.
    """
    lines = ["", *(f"{name}={value}" for name, value in options.items())]
    return _ExperimentalConfig(custom_profiler_config="\n".join(lines))


def annotated_step(index: int) -> contextlib.AbstractContextManager[object]:
    """Annotates step `index` of a window, which ends with a drained device, unless discarded."""
    return contextlib.nullcontext() if index < DISCARDED else record_function(STEP)


def _save(recorded: profile, path: Path) -> None:
    plain = path.with_suffix("")
    recorded.export_chrome_trace(str(plain))
    with plain.open("rb") as text, gzip.open(path, "wb") as packed:
        shutil.copyfileobj(text, packed)
    plain.unlink()


def to_events(recorded: Iterable[Any]) -> list[Event]:
    """Convert Kineto's events; the first begins at second 0."""
    recorded = relevant_events(recorded)
    origin = min((event.start_ns() for event in recorded), default=0)
    return [_to_event(event, origin) for event in recorded]


def relevant_events(recorded: Iterable[Any]) -> list[Any]:
    """The events that `split_step_time` reads; most of a trace are calls of CUDA's runtime.

    On a GPU all of the device and the host's annotations; on a CPU the operators that no other of
    their thread has called, since a called one covers no further time.
    """
    recorded = list(recorded)
    if all(e.device_type() == DeviceType.CPU for e in recorded):
        return list(_without_called(recorded))
    return [e for e in recorded if e.device_type() != DeviceType.CPU or e.is_user_annotation()]


def _without_called(on_host: Iterable[Any]) -> Iterator[Any]:
    """Our annotations, gloo's spans, and operators within no earlier one of their thread."""
    last: dict[int, tuple[int, int]] = {}  # operator of each thread: its start and end, ns
    for event in on_host:
        name = event.name()
        if name.startswith(COMPUTING):
            start, thread = event.start_ns(), event.start_thread_id()
            end = start + event.duration_ns()
            began, ended = last.get(thread, (0, -1))
            if began <= start and end <= ended:
                continue
            last[thread] = start, end
            yield event
        elif name.startswith((*_OURS, "gloo:")):
            yield event


def _to_event(event: Any, origin_ns: int) -> Event:
    start_ns = event.start_ns() - origin_ns  # seconds since the epoch would round microseconds away
    return Event(
        name=event.name(),
        start=start_ns * 1e-9,
        end=(start_ns + event.duration_ns()) * 1e-9,
        thread=event.start_thread_id(),
        on_device=event.device_type() != DeviceType.CPU,
        # Kineto also draws ranges of the host on the device's line, where they look like kernels
        annotation=event.is_user_annotation() or event.name().startswith((*_OURS, "nccl:")),
        id=event.correlation_id(),
    )
