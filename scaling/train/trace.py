"""A short profiler window after the timed steps, kept in memory."""

import contextlib
import gzip
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import DeviceType  # type: ignore[attr-defined] # exported at run time
from torch.autograd.profiler import profile, record_function

from scaling.layout import Layout
from scaling.train.rendezvous import Place
from scaling.train.window import COMPUTING, LAUNCH, STEP, Event

STEPS = 2

# How torch.distributed calls a process group, which differs between its versions.
_CALLS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "allgather": "all_gather",
    "_allgather_base": "all_gather",
    "all_gather_single": "all_gather",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "all_gather_single_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "send": "send_recv",
    "recv": "send_recv",
    "recv_anysource": "send_recv",
    "broadcast": "broadcast",
    "reduce": "",
    "barrier": "",
    "_end_coalescing": "",  # NCCL launches here what was queued since _start_coalescing
}
_OURS = (STEP, LAUNCH)
_OUTERMOST_FIRST = ("pp", "dp", "cp", "tp")


def traced(
    step: Callable[[int], None],
    *,
    layout: Layout,
    device: torch.device,
    steps: int = STEPS,
    keep: Path | None = None,
) -> list[Event]:
    """The events of `steps` steps; `step(i)` trains once and drains the device.

    With `keep` the whole trace goes to that file, for Chrome's or Perfetto's viewer, compressed.

    torch's inner profiler: torch.profiler imports its compiler for the file's metadata, a second
    of every rank that writes no file.
    """
    on_gpu = device.type == "cuda"
    with (
        _launches_annotated(layout),
        profile(use_kineto=True, use_device="cuda" if on_gpu else None) as recorded,
    ):
        for index in range(steps):
            with record_function(STEP):
                step(index)
    if keep is not None:
        _save(recorded, keep)
    found = _of_use(recorded.kineto_results.events())
    origin = min(each.start_ns() for each in found)
    return [_event(each, origin) for each in found]


def _save(recorded: profile, path: Path) -> None:
    plain = path.with_suffix("")
    recorded.export_chrome_trace(str(plain))
    with plain.open("rb") as text, gzip.open(path, "wb") as packed:
        shutil.copyfileobj(text, packed)
    plain.unlink()


def _of_use(found: Iterable[Any]) -> list[Any]:
    """The events that `split_of` reads: of millions, most are host calls that nothing asks about.

    On a GPU the host's operators say nothing but which of them launched a kernel of NCCL.
    """
    found = list(found)
    on_device = [each for each in found if each.device_type() != DeviceType.CPU]
    if not on_device:
        return [each for each in found if each.name().startswith((*_OURS, *COMPUTING, "gloo:"))]
    callers = {e.linked_correlation_id() for e in on_device if e.name().startswith("nccl")}
    of_host = (each for each in found if each.device_type() == DeviceType.CPU)
    return on_device + [
        each
        for each in of_host
        if each.name().startswith(_OURS) or each.correlation_id() in callers
    ]


def axis_of(ranks: list[int], layout: Layout) -> str | None:
    """The degree that this group serves, None for a group of one rank.

    A group that spans several (gradients over dp and cp, a norm over everything) is named for the
    outermost of them.
    """
    places = [Place.of(rank, layout) for rank in ranks]
    for axis in _OUTERMOST_FIRST:
        if len({getattr(place, f"{axis}_rank") for place in places}) > 1:
            return axis
    return None


@contextlib.contextmanager
def _launches_annotated(layout: Layout) -> Iterator[None]:
    """Within it every call of a process group leaves its kind and its axis in the trace.

    Python's calls only, which is all that torch.distributed and DeepSpeed make: each ends in a
    method of ProcessGroup.
    """
    axes: dict[str, str | None] = {}

    def annotated(call: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def launch(group: dist.ProcessGroup, *given: Any, **named: Any) -> Any:
            name = group.group_name
            if name not in axes:
                axes[name] = axis_of(dist.get_process_group_ranks(group), layout)
            with record_function(f"{LAUNCH}|{kind}|{axes[name] or ''}"):
                return call(group, *given, **named)

        return launch

    kept = {
        name: vars(dist.ProcessGroup)[name] for name in _CALLS if name in vars(dist.ProcessGroup)
    }
    try:
        for name, call in kept.items():
            setattr(dist.ProcessGroup, name, annotated(call, _CALLS[name]))
        yield
    finally:
        for name, call in kept.items():
            setattr(dist.ProcessGroup, name, call)


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
