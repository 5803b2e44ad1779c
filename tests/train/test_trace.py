import dataclasses
import gzip
import json

import pytest
from torch.autograd import DeviceType  # type: ignore[attr-defined] # exported at run time

from scaling.layout import Layout
from scaling.train.trace import _of_use, axis_of
from scaling.train.window import AXES, KINDS
from tests.points import tiny_point
from tests.train.conftest import Run, Train

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


class Recorded:
    """An event as Kineto hands it over, as far as the choice looks at it."""

    def __init__(self, name: str, *, on_device: bool = False, id: int = 0, linked: int = 0) -> None:
        self._said = (name, DeviceType.CUDA if on_device else DeviceType.CPU, id, linked)

    def name(self) -> str:
        return self._said[0]

    def device_type(self) -> DeviceType:
        return self._said[1]

    def correlation_id(self) -> int:
        return self._said[2]

    def linked_correlation_id(self) -> int:
        return self._said[3]


def test_of_a_gpus_trace_only_the_callers_of_nccl_are_kept_beside_the_kernels() -> None:
    events = [
        Recorded("scaling.step"),
        Recorded("aten::mm", id=1),
        Recorded("c10d::allreduce_", id=2),
        Recorded("gemm", on_device=True, linked=1),
        Recorded("ncclDevKernel_AllReduce_Sum_f32_RING_LL", on_device=True, linked=2),
    ]
    kept = {event.name() for event in _of_use(events)}
    assert kept == {event.name() for event in events} - {"aten::mm"}


def test_of_a_cpus_trace_operators_and_gloos_spans_are_kept() -> None:
    names = ["scaling.step", "scaling.launch|all_reduce|dp", "aten::mm", "gloo:all_reduce"]
    events = [Recorded(name) for name in [*names, "autograd::engine", "c10d::allreduce_"]]
    assert [event.name() for event in _of_use(events)] == names


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("layout", "kinds", "axes"),
    [
        ({}, set(), set()),
        ({"dp": 2, "zero_stage": 3}, {"all_gather", "reduce_scatter"}, {"dp"}),
        (
            {"tp": 2, "sequence_parallel": True, "zero_stage": 1},
            {"all_gather", "reduce_scatter", "all_reduce"},
            {"tp"},
        ),
        ({"cp": 2, "zero_stage": 1}, {"all_to_all", "all_gather"}, {"cp"}),
        ({"pp": 2, "gradient_accumulation_steps": 4}, {"send_recv"}, {"pp"}),
    ],
    ids=str,
)
def test_a_step_is_split_by_what_its_layout_exchanges(
    train: Train, layout: dict[str, int], kinds: set[str], axes: set[str]
) -> None:
    for result in train(tiny_point(measured_steps=2, **layout)).values():
        spent = result.spent
        assert spent is not None
        assert kinds <= {kind for kind in KINDS if spent[f"{kind}_s"] > 0}
        assert axes == {axis for axis in AXES if spent[f"{axis}_comm_s"] > 0}
        assert spent["compute_s"] > 0
        assert 0 <= spent["exposed_comm_s"] <= spent["comm_s"] + 1e-9  # rounded sums
        assert spent["idle_s"] > 0
        assert (spent["pipeline_bubble_s"] > 0) == ("pp" in layout)


@pytest.mark.ranks
def test_the_window_adds_no_step_to_what_is_timed_or_learned(train: Train) -> None:
    for result in train(tiny_point(dp=2, warmup_steps=1, measured_steps=2)).values():
        assert (len(result.step_times_s), len(result.losses)) == (2, 3)


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
