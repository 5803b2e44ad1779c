"""The work after a step's last backward is annotated, once a step, for the profiler."""

import dataclasses
import gzip
import json
from typing import Any

import pytest

from scaling.train.measure.trace import STEPS
from scaling.train.measure.window import OPTIMIZER, STEP
from tests.points import tiny_point
from tests.train.conftest import Run

Span = tuple[float, float]


@pytest.mark.ranks
@pytest.mark.parametrize(
    "layout",
    [
        {"zero_stage": 0},
        {"dp": 2, "zero_stage": 1},
        {"zero_stage": 3},
        {"pp": 2},
        {"engine": "torch", "dp": 2, "zero_stage": 3},
        {"engine": "torch", "pp": 2},
    ],
    ids=str,
)
def test_a_step_ends_in_one_optimizer_region(run_ranks: Run, layout: dict[str, Any]) -> None:
    point = tiny_point(measured_steps=1, gradient_accumulation_steps=2, **layout)
    codes, files, logs = run_ranks(dataclasses.replace(point, keep_trace=True))
    assert not any(codes), logs
    for rank in range(point.layout.world_size):
        with gzip.open(files.trace(rank), "rt") as text:
            events = [e for e in json.load(text)["traceEvents"] if e.get("ph") == "X"]
        steps, regions = (_spans(events, name) for name in (STEP, OPTIMIZER))
        updates = _spans(events, "Optimizer.step#AdamW.step")
        assert len(steps) == STEPS
        for step in steps:
            (region,) = [each for each in regions if _within(each, step)]
            (update,) = [each for each in updates if _within(each, step)]
            assert _within(update, region)


def _spans(events: list[dict[str, Any]], name: str) -> list[Span]:
    return [(e["ts"], e["ts"] + e["dur"]) for e in events if e["name"] == name]


def _within(inner: Span, outer: Span) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]
