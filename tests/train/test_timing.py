"""What a stopwatch runs around."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from scaling.record.rank_files import RankFiles
from scaling.train.measure.timing import HostStopwatch
from scaling.train.parallel.groups import Groups
from scaling.train.stepping import StepRunner
from tests.points import tiny_point


class Log:
    """A stopwatch and a training run that only write down who was called."""

    name = "log"
    engine = None

    def __init__(self) -> None:
        self.said: list[str] = []

    def start(self) -> None:
        self.said.append("start")

    def stop(self) -> float:
        self.said.append("stop")
        return 1.0

    def step(self, _: object) -> None:
        self.said.append("step")

    def loss(self) -> float:
        self.said.append("loss")
        return 2.0

    def grad_norm(self) -> None:
        return None


def test_the_watch_runs_around_the_step_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = Log()
    monkeypatch.setattr(dist, "barrier", lambda: log.said.append("align"))
    monkeypatch.setattr(StepRunner, "_draw", lambda *_: log.said.append("data") or [])
    point = tiny_point(warmup_steps=2, measured_steps=1)
    groups: Groups = object.__new__(Groups)  # whose place only drawing asks for
    device = torch.device("cpu")
    runner = StepRunner(point, log, groups, RankFiles(tmp_path), 0, device, log)
    full = runner.run_full_steps(None)
    assert log.said == 3 * ["data", "align", "start", "step", "stop", "loss"]
    assert (full.times_s, full.warmup_steps, full.metered_steps) == ([1.0], 2, 1)


def test_the_host_watch_subtracts_two_readings() -> None:
    readings = iter([10.0, 12.5])
    watch = HostStopwatch(clock=lambda: next(readings))
    watch.start()
    assert watch.stop() == 2.5
