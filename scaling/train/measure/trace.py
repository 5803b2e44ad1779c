"""A short profiler window after the timed steps, kept in memory."""

import contextlib
import gzip
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.autograd import DeviceType  # type: ignore[attr-defined] # exported at run time
from torch.autograd.profiler import profile, record_function

from scaling.layout.layout import Layout
from scaling.train.measure.launches import annotate_launches
from scaling.train.measure.window import COMPUTING, LAUNCH, OPTIMIZER, STEP, Event

STEPS = 2
DISCARDED = 1  # before them: what happens once under a profiler

# Of host memory, and only as far as it is used. Kineto stops at 128 MB unless it is told, without a
# word, which 32 micro-batches of a large model fill.
_BUFFER_MB = 1024
_OURS = (STEP, LAUNCH, OPTIMIZER)


def profile_steps(
    step: Callable[[int], None],
    *,
    align: Callable[[], object],
    layout: Layout,
    device: torch.device,
    steps: int = STEPS,
    keep: Path | None = None,
) -> list[Event]:
    """The events of `steps` steps after DISCARDED others; `step(i)` trains and drains the device.

    `align` lets the ranks start each step together. The first time is after the profiler has
    started, which takes each rank another time that would count as communication.

    With `keep` the whole trace goes to that file, for Chrome's or Perfetto's viewer, compressed.

    torch's inner profiler: torch.profiler imports its compiler for the file's metadata, a second
    of every rank that writes no file.
    """
    on_gpu = device.type == "cuda"
    with (
        annotate_launches(layout),
        profile(
            use_kineto=True,
            use_device="cuda" if on_gpu else None,
            experimental_config=kineto_options(ACTIVITIES_MAX_GPU_BUFFER_SIZE_MB=_BUFFER_MB),
        ) as recorded,
    ):
        for index in range(DISCARDED + steps):
            align()
            measured = index >= DISCARDED
            with record_function(STEP) if measured else contextlib.nullcontext():
                step(index)
    if keep is not None:
        _save(recorded, keep)
    return to_events(recorded.kineto_results.events())


def kineto_options(**options: int) -> _ExperimentalConfig:
    """Lines of Kineto's configuration, which torch has no parameters for.

    Its file (KINETO_CONFIG) is for traces that a daemon asks for. torch hands its own requests over
    as text, into which it puts this one parameter as it is; so the lines follow one that is empty.
    """
    lines = ["", *(f"{name}={value}" for name, value in options.items())]
    return _ExperimentalConfig(custom_profiler_config="\n".join(lines))


def _save(recorded: profile, path: Path) -> None:
    plain = path.with_suffix("")
    recorded.export_chrome_trace(str(plain))
    with plain.open("rb") as text, gzip.open(path, "wb") as packed:
        shutil.copyfileobj(text, packed)
    plain.unlink()


def to_events(recorded: Iterable[Any]) -> list[Event]:
    """Kineto's events as ours, the first at second 0."""
    recorded = relevant_events(recorded)
    origin = min((each.start_ns() for each in recorded), default=0)
    return [_event(each, origin) for each in recorded]


def relevant_events(recorded: Iterable[Any]) -> list[Any]:
    """The events that `split_step_time` reads; most of a trace's millions are other host calls.

    On a GPU the only host operators kept are those that launched an NCCL kernel.
    """
    recorded = list(recorded)
    on_device = [each for each in recorded if each.device_type() != DeviceType.CPU]
    if not on_device:
        return [each for each in recorded if each.name().startswith((*_OURS, *COMPUTING, "gloo:"))]
    callers = {e.linked_correlation_id() for e in on_device if e.name().startswith("nccl")}
    of_host = (each for each in recorded if each.device_type() == DeviceType.CPU)
    return on_device + [
        each
        for each in of_host
        # a call of CUDA's runtime is numbered by CUPTI, an operator by torch: linked is the former
        if each.name().startswith(_OURS)
        or (each.correlation_id() in callers and not each.linked_correlation_id())
    ]


def _event(each: Any, origin: int) -> Event:
    start = each.start_ns() - origin  # a second since the epoch has no room for microseconds
    return Event(
        name=each.name(),
        start=start * 1e-9,
        end=(start + each.duration_ns()) * 1e-9,
        thread=each.start_thread_id(),
        on_device=each.device_type() != DeviceType.CPU,
        # a range of the host is drawn on the device's line too, where it would pass for a kernel
        annotation=each.is_user_annotation() or each.name().startswith((*_OURS, "nccl:")),
        id=each.correlation_id(),
        linked_id=each.linked_correlation_id(),
    )
