"""When a rank draws its data, and waits for the others."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from scaling.train import stepping
from scaling.train.data import Feed, MicroBatch
from scaling.train.measure import trace
from scaling.train.measure.timing import HostStopwatch
from scaling.train.stepping import StepRunner
from tests.points import tiny_point
from tests.train.reference import CPU


def test_the_host_draws_nothing_between_the_warm_up_and_the_last_step_that_counts() -> None:
    drawn: list[int] = []

    def draw(step: int) -> list[MicroBatch]:
        drawn.append(step)
        return [(torch.tensor([step]), torch.tensor([step + 1]))]

    feed = Feed(draw, counted=range(2, 5), device=CPU)
    seen = []
    for step in range(7):  # two to warm up, three that count, two under the profiler
        ((ids, labels),) = feed(step)
        assert (ids.item(), labels.item()) == (step, step + 1)
        seen.append(list(drawn))
    assert seen[0] == [2, 3, 4, 0]
    assert seen[1] == seen[2] == seen[3] == seen[4] == [2, 3, 4, 0, 1]
    assert seen[6] == [2, 3, 4, 0, 1, 5, 6]


def test_ranks_begin_every_step_under_the_profiler_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each draws, and starts its profiler, in a time of its own."""
    log: list[str] = []

    def says(what: str) -> Callable[..., Any]:
        return lambda *_, **__: log.append(what)

    monkeypatch.setattr(stepping, "rank_batches", lambda *_: log.append("draw") or [])
    monkeypatch.setattr(stepping.dist, "barrier", says("meet"))
    monkeypatch.setattr(stepping.dist, "all_reduce", lambda *_: None)
    nothing: Any = SimpleNamespace(place=None, beat=lambda *_: None, step=says("step"))
    runner = StepRunner(
        tiny_point(time_limit_s=1e6), nothing, nothing, nothing, rank=0, device=CPU,
        stopwatch=HostStopwatch(),
    )  # fmt: skip
    assert runner.run_traced_steps(1e-3, time.time()) is not None
    assert log == ["draw", "meet", "step"] * (trace.DISCARDED + trace.STEPS)
