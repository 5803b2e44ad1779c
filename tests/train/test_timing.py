"""The stopwatches of steps."""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from scaling.record.rank_files import RankFiles
from scaling.train import program, stepping
from scaling.train.measure import trace
from scaling.train.parallel.groups import Groups, Place
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


def silent(_: str) -> None: ...


def test_the_watch_runs_around_the_step_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = Log()

    def one_batch(_: int) -> list[object]:
        log.said.append("data")
        return []

    monkeypatch.setattr(dist, "barrier", lambda **_: log.said.append("align"))
    monkeypatch.setattr(stepping, "Feed", lambda *_, **__: log.said.append("draws") or one_batch)
    point = tiny_point(warmup_steps=2, measured_steps=1)
    groups: Groups = object.__new__(Groups)
    groups.place = Place.of(0, point.layout)
    device = torch.device("cpu")
    runner = StepRunner(point, log, groups, RankFiles(tmp_path), silent, 0, device, log)
    full = runner.run_full_steps(None)
    step = ["data", "align", "start", "step", "stop", "loss"]
    assert log.said == ["draws", *3 * step]
    assert full == {
        "step_times_s": [1.0], "warmup_steps": 2, "metered_steps": 1, "stopped": "asked"
    }  # fmt: skip


@pytest.mark.parametrize(("device", "named"), [("cpu", None), ("cuda:1", [1])])
def test_the_first_collective_names_its_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str, named: list[int] | None
) -> None:
    """Engine torch has no collective before it, so NCCL would guess."""
    log, told = Log(), []
    monkeypatch.setattr(dist, "barrier", lambda *, device_ids: told.append(device_ids))
    monkeypatch.setattr(stepping, "Feed", lambda *_, **__: lambda step: [])
    monkeypatch.setattr(stepping, "allocator_trouble", lambda _: {})
    point = tiny_point(engine="torch", warmup_steps=1, measured_steps=1)
    groups: Groups = object.__new__(Groups)
    groups.place = Place.of(0, point.layout)
    where = torch.device(device)
    StepRunner(point, log, groups, RankFiles(tmp_path), silent, 0, where, log).run_full_steps(None)
    assert told == [named, named]


def test_ranks_begin_every_step_under_the_profiler_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each starts its profiler in a time of its own."""
    log = Log()
    monkeypatch.setattr(dist, "barrier", lambda **_: log.said.append("align"))
    monkeypatch.setattr(dist, "all_reduce", lambda *_: None)
    monkeypatch.setattr(stepping, "Feed", lambda *_, **__: lambda step: log.said.append("data"))
    point = tiny_point(time_limit_s=1e6)
    groups: Groups = object.__new__(Groups)
    groups.place = Place.of(0, point.layout)
    runner = StepRunner(
        point, log, groups, RankFiles(tmp_path), silent, 0, torch.device("cpu"), log
    )
    assert runner.run_traced_steps(1e-3, time.time()) is not None
    assert log.said == ["data", "align", "step"] * (trace.DISCARDED + trace.STEPS)


def test_what_was_timed_is_kept_before_a_step_runs_under_the_profiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full_card(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    log = Log()
    log.engine = SimpleNamespace(module=torch.nn.Module())
    monkeypatch.setattr(dist, "barrier", lambda **_: None)
    monkeypatch.setattr(stepping, "Feed", lambda *_, **__: lambda step: [])
    monkeypatch.setattr(StepRunner, "run_traced_steps", full_card)
    point = tiny_point(measured_steps=2)
    groups: Groups = object.__new__(Groups)
    groups.place, groups.data_group = Place.of(0, point.layout), None
    files = RankFiles(tmp_path)
    runner = StepRunner(point, log, groups, files, silent, 0, torch.device("cpu"), log)
    with pytest.raises(torch.OutOfMemoryError):
        program._run_and_read(runner, None)
    assert (files.finished(), files.timed()) == (frozenset(), frozenset({0}))
    assert files.results()[0].step_times_s == [1.0, 1.0]


def test_allocator_retries_are_counted_within_the_measured_steps_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each step adds three retries and a failure, those of the warm-up too."""
    log = Log()
    monkeypatch.setattr(dist, "barrier", lambda **_: None)
    monkeypatch.setattr(stepping, "Feed", lambda *_, **__: lambda step: [])

    def counts(_: torch.device) -> dict[str, int]:
        steps = log.said.count("step")
        return {"num_alloc_retries": 3 * steps, "num_ooms": steps}

    monkeypatch.setattr(stepping, "allocator_trouble", counts)
    point = tiny_point(warmup_steps=2, measured_steps=4)
    groups: Groups = object.__new__(Groups)
    groups.place = Place.of(0, point.layout)
    device = torch.device("cpu")
    runner = StepRunner(point, log, groups, RankFiles(tmp_path), silent, 0, device, log)
    runner.run_full_steps(None)
    assert runner.trouble == {"num_alloc_retries": 12, "num_ooms": 4}


class Overflowing(Log):
    """Gradients overflow fp16 in its first steps, which halve the loss scale instead."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.skipped_steps, self.left = 0, steps

    def step(self, _: object) -> None:
        self.skipped_steps += self.left > 0
        self.left -= 1


@pytest.mark.parametrize("overflows", [0, 2, 3, 5])
def test_a_step_that_updated_nothing_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, overflows: int
) -> None:
    trainer = Overflowing(overflows)
    monkeypatch.setattr(dist, "barrier", lambda **_: None)
    monkeypatch.setattr(stepping, "Feed", lambda *_, **__: lambda step: [])
    point = tiny_point(warmup_steps=2, measured_steps=2, precision="fp16")
    groups: Groups = object.__new__(Groups)
    groups.place = Place.of(0, point.layout)
    device = torch.device("cpu")
    runner = StepRunner(point, trainer, groups, RankFiles(tmp_path), silent, 0, device, Log())
    if overflows <= 2:
        assert runner.run_full_steps(None)["step_times_s"] == [1.0, 1.0]
        return
    with pytest.raises(RuntimeError, match=rf"^{min(overflows, 4) - 2} of the measured steps"):
        runner.run_full_steps(None)


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
