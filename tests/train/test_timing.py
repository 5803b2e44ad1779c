"""The stopwatches of steps, and how often a rank reports them."""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from scaling.record.rank_files import RankFiles
from scaling.train import program, stepping
from scaling.train.measure import trace
from scaling.train.parallel.groups import Groups, Place
from scaling.train.program import Beats
from scaling.train.stepping import StepRunner, Stopwatch
from tests.points import tiny_point


class Log(Stopwatch):
    """A stopwatch and a training run that only write down who was called."""

    name = "log"
    engine: object = None
    skipped_steps = 0

    def __init__(self) -> None:
        self.said: list[str] = []

    def seconds_of(self, work: Callable[[], object]) -> float:
        self.said.append("start")
        work()
        self.said.append("stop")
        return 1.0

    def step(self, _: object) -> None:
        self.said.append("step")

    def loss(self) -> float:
        self.said.append("loss")
        return 2.0

    def grad_norm(self) -> None:
        return None


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., StepRunner]:
    """Makes the runner of a point that steps, waits for others and takes data as `log` writes."""

    def made(log: Log, where: str = "cpu", **changes: Any) -> StepRunner:
        def feed(*_: object, **__: object) -> Callable[[int], None]:
            log.said.append("draws")
            return lambda step: log.said.append("data")

        monkeypatch.setattr(dist, "barrier", lambda **_: log.said.append("align"))
        monkeypatch.setattr(stepping, "Feed", feed)
        point = tiny_point(**changes)
        groups: Groups = object.__new__(Groups)
        groups.place, groups.data_group = Place.of(0, point.layout), None
        device, files = torch.device(where), RankFiles(tmp_path)
        return StepRunner(point, log, groups, files, lambda _: None, 0, device, log)

    return made


Made = Callable[..., StepRunner]


def test_the_watch_runs_around_the_step_and_nothing_else(runner: Made) -> None:
    log = Log()
    full = runner(log, warmup_steps=2, measured_steps=1).run_full_steps(None)
    step = ["data", "align", "start", "step", "stop", "loss"]
    assert log.said == ["draws", *3 * step]
    assert full == {
        "step_times_s": [1.0], "warmup_steps": 2, "metered_steps": 1, "stopped": "asked"
    }  # fmt: skip


@pytest.mark.parametrize(("device", "named"), [("cpu", None), ("cuda:1", [1])])
def test_the_first_collective_names_its_device(
    runner: Made, monkeypatch: pytest.MonkeyPatch, device: str, named: list[int] | None
) -> None:
    """Engine torch has no collective before it, so NCCL would guess."""
    asked, told = runner(Log(), device, engine="torch", measured_steps=1), []
    monkeypatch.setattr(dist, "barrier", lambda *, device_ids: told.append(device_ids))
    monkeypatch.setattr(stepping, "allocator_trouble", lambda _: {})
    asked.run_full_steps(None)
    assert told == [named]


def test_ranks_begin_every_step_under_the_profiler_together(
    runner: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each starts its profiler in a time of its own."""
    log = Log()
    monkeypatch.setattr(dist, "all_reduce", lambda *_: None)
    assert runner(log, time_limit_s=1e6).run_traced_steps(1e-3, time.time()) is not None
    assert log.said == ["draws", *["data", "align", "step"] * (trace.DISCARDED + trace.STEPS)]


def test_what_was_timed_is_kept_before_a_step_runs_under_the_profiler(
    runner: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_card(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    log = Log()
    log.engine = SimpleNamespace(module=torch.nn.Module())
    monkeypatch.setattr(StepRunner, "run_traced_steps", full_card)
    asked = runner(log, measured_steps=2)
    with pytest.raises(torch.OutOfMemoryError):
        program._run_and_read(asked, None)
    files = asked.files
    assert (files.finished(), files.timed()) == (frozenset(), frozenset({0}))
    assert files.results()[0].step_times_s == [1.0, 1.0]


def test_allocator_retries_are_counted_within_the_measured_steps_only(
    runner: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step adds three retries and a failure, those of the warm-up too."""
    log = Log()

    def counts(_: torch.device) -> dict[str, int]:
        steps = log.said.count("step")
        return {"num_alloc_retries": 3 * steps, "num_ooms": steps}

    monkeypatch.setattr(stepping, "allocator_trouble", counts)
    asked = runner(log, warmup_steps=2, measured_steps=4)
    asked.run_full_steps(None)
    assert asked.trouble == {"num_alloc_retries": 12, "num_ooms": 4}


class Overflowing(Log):
    """Gradients overflow fp16 in its first steps, which halve the loss scale instead."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.skipped_steps, self.left = 0, steps

    def step(self, _: object) -> None:
        self.skipped_steps += self.left > 0
        self.left -= 1


@pytest.mark.parametrize("overflows", [0, 2, 3, 5])
def test_a_step_that_updated_nothing_is_not_measured(runner: Made, overflows: int) -> None:
    asked = runner(Overflowing(overflows), warmup_steps=2, measured_steps=2, precision="fp16")
    if overflows <= 2:
        assert asked.run_full_steps(None)["step_times_s"] == [1.0, 1.0]
        return
    with pytest.raises(RuntimeError, match=rf"^{min(overflows, 4) - 2} of the measured steps"):
        asked.run_full_steps(None)


def test_the_cuda_watch_drains_the_device_before_each_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            said.append("mark")

        def synchronize(self) -> None:
            said.append("wait")

        def elapsed_time(self, _: object) -> float:
            return 1500.0  # milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: said.append("drain"))
    assert Stopwatch(torch.device("cuda")).seconds_of(lambda: said.append("work")) == 1.5
    assert said == ["drain", "mark", "work", "drain", "mark", "wait"]


class Counted(RankFiles):
    writes = 0

    def beat(self, rank: int, doing: str) -> None:
        self.writes += 1
        super().beat(rank, doing)


def test_a_thousand_short_steps_are_few_writes_and_the_last_is_known(tmp_path: Path) -> None:
    files = Counted(tmp_path)
    beats = Beats(files, 3, every_s=0.2)
    began = time.monotonic()
    for step in range(1000):
        beats(f"step {step} of 1000")
    lasted = time.monotonic() - began
    while files.beats() != {3: "step 999 of 1000"}:
        assert time.monotonic() - began < 60, files.beats()
        time.sleep(0.01)
    assert files.writes <= 2 + lasted / 0.2


def test_the_first_step_is_reported_at_once(tmp_path: Path) -> None:
    files = Counted(tmp_path)
    Beats(files, 0, every_s=3600)("step 0 of 9")
    end = time.monotonic() + 60
    while not files.beats():
        assert time.monotonic() < end
        time.sleep(0.01)
