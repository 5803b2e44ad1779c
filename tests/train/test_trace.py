"""The kept part of a profiler's trace, and its seconds."""

import contextlib
import dataclasses
import functools
import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.autograd import DeviceType  # type: ignore[attr-defined] # exported at run time
from torch.autograd.profiler import record_function
from torch.profiler import profile
from torch.testing._internal.distributed.fake_pg import FakeStore

from scaling.layout.engines import ENGINES
from scaling.layout.layout import Layout
from scaling.train.measure import trace
from scaling.train.measure.launches import annotate_launches, axis_of
from scaling.train.measure.trace import (
    DISCARDED,
    STEPS,
    annotated_step,
    profiler_window,
    relevant_events,
    to_events,
)
from scaling.train.measure.window import AXES, KINDS, LAUNCH, split_step_time, unusable_reason
from scaling.train.parallel.context import ContextParallel
from tests.points import tiny_point
from tests.train.conftest import Run, Train
from tests.train.reference import CPU

CUBE = Layout(tp=2, cp=2, dp=2, pp=2, seq_length=8)


@pytest.mark.parametrize(
    ("ranks", "axis"),
    [
        ([0, 1], "tp"),
        ([0, 2], "cp"),
        ([0, 4], "dp"),
        ([0, 8], "pp"),
        ([0, 2, 4, 6], "dp"),  # gradients: the same weights, other tokens
        (list(range(16)), "pp"),
        ([3], None),
    ],
)
def test_a_group_is_named_for_the_outermost_degree_it_spans(
    ranks: list[int], axis: str | None
) -> None:
    assert axis_of(ranks, CUBE) == axis


def event(name: str, *, on_device: bool = False, annotation: bool = False, **said: int) -> Any:
    """An event as Kineto hands it over, as far as ours is made of it."""
    answers = {
        "name": name, "is_user_annotation": annotation, "correlation_id": 0, "start_ns": 0,
        "duration_ns": 0, "start_thread_id": 0,
        "device_type": DeviceType.CUDA if on_device else DeviceType.CPU,
    }  # fmt: skip
    calls = {name: functools.partial(lambda a: a, a) for name, a in (answers | said).items()}
    return SimpleNamespace(**calls)


@pytest.fixture
def ring() -> Iterator[ContextParallel]:
    """The second rank of two, whose neighbour is not there: what it sends comes back."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    yield ContextParallel(size=2, rank=1, group=dist.group.WORLD, ring=True)
    dist.destroy_process_group()


def test_every_turn_of_a_ring_is_announced_with_its_axis(ring: ContextParallel) -> None:
    parts = [torch.randn(1, 2, 8, 16, requires_grad=True) for _ in range(3)]
    layout = Layout(cp=2, cp_style="ring", seq_length=16)
    with annotate_launches(layout), profile(acc_events=True) as seen:
        ring.ring_attention(*parts).sum().backward()
    counts = {each.key: each.count for each in seen.key_averages()}
    turns = counts["_c10d_functional::all_to_all_single"]
    assert turns > 0
    assert counts[f"{LAUNCH}|all_to_all|cp"] == turns


def test_of_a_gpus_trace_kernels_and_annotations_are_kept() -> None:
    events = [
        event("scaling.step", annotation=True),
        event("scaling::optimizer", annotation=True),
        event("Optimizer.step#AdamW.step", annotation=True),
        event("cudaLaunchKernel", correlation_id=1),
        event("gemm", on_device=True),
        event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", on_device=True),
    ]
    kept = {each.name() for each in relevant_events(events)}
    assert kept == {each.name() for each in events} - {"cudaLaunchKernel"}


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_events_of_a_gpus_window_are_annotations_and_no_operators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine without a GPU records what the host does, which would be all its operators."""
    handed_over: list[str] = []

    def note(recorded: Any) -> list[Any]:
        handed_over.extend(event.name() for event in recorded)
        return []

    monkeypatch.setattr(trace, "to_events", note)
    x = torch.ones(8, 8, requires_grad=True)
    with profiler_window(CUBE, torch.device("cuda")):
        for index in range(DISCARDED + STEPS):
            with annotated_step(index):
                for _ in range(100):
                    (x @ x).sum().backward()
    assert handed_over.count("scaling.step") == STEPS
    assert not [name for name in handed_over if name.startswith(("aten::", "autograd::"))]
    assert len(handed_over) < 100


def test_of_a_cpus_trace_an_operator_that_another_has_called_is_left_out() -> None:
    spans = {
        "aten::linear": (0, 10, 1),
        "aten::addmm": (2, 8, 1),  # called by it
        "aten::copy_": (2, 3, 2),  # on another thread
        "aten::add": (10, 2, 1),
        "aten::mul": (11, 4, 1),  # ends after the one before
    }
    events = [
        event(name, start_ns=start, duration_ns=duration, start_thread_id=thread)
        for name, (start, duration, thread) in spans.items()
    ]
    kept = [each.name() for each in relevant_events(events)]
    assert kept == [name for name in spans if name != "aten::addmm"]


_ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"}


def recorded(path: Path) -> list[Any]:
    """The events of a trace that torch has exported, as Kineto handed them over before."""
    found = []
    for each in json.loads(path.read_text())["traceEvents"]:
        said, kind = each["args"], each["cat"]
        by_cupti = kind in _ON_DEVICE - {"gpu_user_annotation"} or kind == "cuda_runtime"
        found.append(
            event(
                each["name"], on_device=kind in _ON_DEVICE,
                annotation=kind.endswith("user_annotation"),
                correlation_id=said["correlation" if by_cupti else "External id"],
                start_ns=each["ts"] * 1000, duration_ns=each["dur"] * 1000,
                start_thread_id=each["tid"],
            )
        )  # fmt: skip
    return found


def is_by_cupti(one: Any) -> bool:
    return not one.is_user_annotation() and one.device_type() != DeviceType.CPU


HAND_MADE = Path(__file__).parent / "traces" / "cuda_hand_made.json"


def test_a_hand_made_cuda_trace_in_torchs_format_is_split() -> None:
    """One step of 1,000 microseconds of a rank of tp 2, pp 2; see the file's first line."""
    events = to_events(recorded(HAND_MADE))
    assert unusable_reason(events, on_gpu=True) is None
    spent = {
        name: round((each or 0) * 1e6) for name, each in split_step_time(events).items() if each
    }
    assert spent == {
        "compute_s": 300 + 220 + 18,  # GEMM, Adam, a copy
        "comm_s": 180 + 150 + 100,
        "exposed_comm_s": 180 + 100 + 100,  # the GEMM hides 50 of the tp all-reduce
        "idle_s": 82,
        "all_reduce_s": 250,
        "send_recv_s": 180,
        "tp_comm_s": 150,
        "pp_comm_s": 180 + 100,
        "pipeline_bubble_s": 180,  # without the norm's all-reduce over the stages
        "optimizer_s": 320 + 18,  # of which Kineto draws only the copy as our annotation
    }


def test_a_hand_made_cuda_trace_whose_end_was_dropped_is_no_window() -> None:
    kept = [e for e in recorded(HAND_MADE) if not (is_by_cupti(e) and e.start_ns() > 21e5)]
    longer = [  # a step of a millisecond may be ended by the host alone
        dataclasses.replace(event, start=100 * event.start, end=100 * event.end)
        for event in to_events(kept)
    ]
    reason = unusable_reason(longer, on_gpu=True)
    assert reason is not None
    # but for the 30 % in which the host's optimizer may have worked
    assert "no kernel in the last 50% of a step" in reason


def test_a_window_holds_its_marked_steps_only() -> None:
    before = dict(vars(dist.ProcessGroup))
    operator = torch.ops._c10d_functional.all_reduce.default
    with profiler_window(Layout(seq_length=8), CPU) as events:
        for index in range(DISCARDED + STEPS):
            discarded = index < DISCARDED
            mark = contextlib.nullcontext() if discarded else record_function("scaling::optimizer")
            with annotated_step(index), mark:
                torch.ones(8) + 1
    steps = [event for event in events if event.name == "scaling.step"]
    marks = [event for event in events if event.name == "scaling::optimizer"]
    assert (len(steps), len(marks)) == (2, 2)
    spent = split_step_time(events)
    lasted = sum(mark.end - mark.start for mark in marks) / 2
    assert spent["optimizer_s"] == pytest.approx(lasted)
    # annotating has ended
    assert dict(vars(dist.ProcessGroup)) == before
    assert torch.ops._c10d_functional.all_reduce.default is operator


NO_SIZE = """
from torch.autograd.profiler import profile
from scaling.train.measure.trace import kineto_options
options = kineto_options(ACTIVITIES_MAX_GPU_BUFFER_SIZE_MB="much")
with profile(use_kineto=True, experimental_config=options):
    pass
"""


def test_the_size_of_the_buffer_reaches_kineto() -> None:
    """It ends the process over a wrong size: it reads this line, and by this name."""
    ran = subprocess.run(
        [sys.executable, "-c", NO_SIZE], capture_output=True, text=True, check=False
    )
    assert ran.returncode != 0
    assert "ACTIVITIES_MAX_GPU_BUFFER_SIZE_MB=much" in ran.stdout + ran.stderr


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("layout", "kinds", "axes"),
    [
        ({}, set(), set()),
        *(({"dp": 2, "zero_stage": 3, "engine": engine}, {"all_gather", "reduce_scatter"}, {"dp"})
          for engine in ENGINES),
        ({"tp": 2, "sequence_parallel": True, "zero_stage": 1},
         {"all_gather", "reduce_scatter", "all_reduce"}, {"tp"}),
        ({"cp": 2, "zero_stage": 1}, {"all_to_all", "all_gather"}, {"cp"}),
        ({"pp": 2, "gradient_accumulation_steps": 4}, {"send_recv"}, {"pp"}),
        ({"engine": "torch", "pp": 2, "pipeline_schedule": "zbv",
          "gradient_accumulation_steps": 4}, {"send_recv"}, {"pp"}),
    ],
    ids=str,
)  # fmt: skip
def test_a_step_is_split_by_what_its_layout_exchanges(
    train: Train, layout: dict[str, Any], kinds: set[str], axes: set[str]
) -> None:
    for result in train(tiny_point(measured_steps=2, **layout)).values():
        spent = result.spent
        assert spent is not None
        seconds = {name: each for name, each in spent.items() if each is not None}
        assert kinds <= {kind for kind in KINDS if seconds[f"{kind}_s"] > 0}
        assert axes == {axis for axis in AXES if seconds[f"{axis}_comm_s"] > 0}
        assert seconds["compute_s"] > 0
        assert 0 <= seconds["exposed_comm_s"] <= seconds["comm_s"] + 1e-9  # rounded sums
        assert seconds["idle_s"] > 0
        step_s = seconds["compute_s"] + seconds["exposed_comm_s"] + seconds["idle_s"]
        assert 0 < seconds["optimizer_s"] < step_s
        assert (seconds["pipeline_bubble_s"] > 0) == ("pp" in layout)
        assert seconds["pipeline_bubble_s"] <= seconds["send_recv_s"] + 1e-9


@pytest.mark.ranks
def test_a_trace_is_kept_where_the_study_asks(run_ranks: Run) -> None:
    point = dataclasses.replace(tiny_point(measured_steps=2), keep_trace=True)
    codes, files, _ = run_ranks(point)
    assert codes == [0]
    with gzip.open(files.trace(0), "rt") as text:
        named = {event.get("name") for event in json.load(text)["traceEvents"]}
    assert {"scaling.step", "aten::mm"} <= named


@pytest.mark.ranks
def test_no_window_is_opened_where_the_time_limit_is_near(train: Train) -> None:
    """The margin for a slow start is 10 s, so nothing is left of this limit."""
    results = train(tiny_point(dp=2, measured_steps=2, time_limit_s=10.0))
    assert [result.spent for result in results.values()] == [None, None]
