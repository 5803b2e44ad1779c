"""How long ranks are waited for, on a clock of the test's own."""

import errno
import tempfile
from pathlib import Path

import pytest

from scaling.launch.judge import Limits, verdict, watch
from scaling.record.rank_files import RankFiles, has_stepped
from scaling.study.time_limits import MOST_STARTUP_S, point_limits


class Asleep:
    """A rank that runs until the watcher ends it; each second something may happen."""

    def __init__(self, files, at):
        self.now, self.ran, self.files, self.at = 0.0, 0.0, files, at

    def sleep(self, seconds):
        before = self.ran
        self.ran += max(seconds, 0.5)
        self.now += max(seconds, 0.5)
        for second in range(int(before) + 1, int(self.ran) + 1):
            self.at.get(second, lambda: None)()

    def exits(self):
        return {}

    def signal(self, number): ...

    def kill(self): ...


def test_ranks_that_step_until_the_limit_are_late(tmp_path):
    files = RankFiles(tmp_path)
    steps = {at: lambda at=at: files.beat(0, f"step {at}") for at in range(3, 50, 3)}
    ranks = Asleep(files, steps)
    ranks.signal = lambda number: ranks.sleep(8.0)  # Slurm takes its time to pass a signal on
    limits = Limits(limit_s=20.0, hang_after_s=30.0, start_hang_after_s=90.0)
    evidence = watch(ranks, files, 1, limits, clock=lambda: ranks.now, sleep=ranks.sleep)
    assert verdict(evidence, {}.get).outcome == "timeout"


@pytest.fixture
def watched(tmp_path):
    def run(beats, stopped_at=-1, stopped_s=0.0):
        files = RankFiles(Path(tempfile.mkdtemp(dir=tmp_path)))
        events = {at: lambda doing=doing: files.beat(0, doing) for at, doing in beats.items()}

        def stop():
            ranks.now += stopped_s

        ranks = Asleep(files, {**events, stopped_at: stop})
        limits = Limits(limit_s=200.0, hang_after_s=30.0, start_hang_after_s=90.0)
        evidence = watch(ranks, files, 1, limits, clock=lambda: ranks.now, sleep=ranks.sleep)
        return evidence, ranks.now

    return run


def test_ranks_may_be_silent_for_longer_until_they_have_done_a_step(watched):
    start = {1: "importing", 60: "building the model", 120: "step 0 of 9"}
    evidence, now = watched(start | {180: "step 1 of 9"})
    assert (evidence.stopped, evidence.beats) == ("late", {0: "step 1 of 9"})
    assert now < 205
    evidence, now = watched({1: "step 0 of 9", 2: "step 1 of 9"})
    assert (evidence.stopped, now < 36) == ("silent", True)
    evidence, now = watched({1: "importing"})
    assert (evidence.stopped, 90 < now < 96) == ("silent", True)


@pytest.mark.parametrize(
    ("doing", "steps"),
    [("step 0 of 25", False), ("step 10 of 25", True), ("traced step 0", True), ("forked", False)],
)
def test_the_first_step_belongs_to_the_start(doing, steps):
    assert has_stepped(doing) is steps


@pytest.mark.parametrize("stopped_s", [40.0, 5000.0])  # both longer than a hang
def test_time_in_which_all_was_suspended_is_neither_silence_nor_lateness(watched, stopped_s):
    beats = {at: f"step {at}" for at in range(1, 150, 10)}
    evidence, now = watched(beats, stopped_at=50, stopped_s=stopped_s)
    assert evidence.suspensions_s == (pytest.approx(stopped_s, abs=2),)
    assert evidence.stopped == "silent"  # since the last beat, a hundred seconds later
    assert evidence.longest_silence_s < 15
    assert stopped_s + 165 < now < stopped_s + 180


def test_a_limit_is_three_times_the_prediction_within_the_studys_bound():
    """The 65B model on 64 A100s: 25 steps of 93 s, which 900 s would have cut off."""
    limit_s, hang_after_s = point_limits(93.0, 5, 20, None)
    assert limit_s % 60 == 0
    assert limit_s > MOST_STARTUP_S + 3 * 25 * 93
    assert hang_after_s == 930
    assert point_limits(93.0, 5, 20, 3600.0) == (3600.0, 930.0)


def test_a_beat_that_is_being_replaced_is_read_the_next_time(tmp_path, monkeypatch):
    files = RankFiles(tmp_path)
    for rank in (0, 1):
        files.beat(rank, "step 1")
    read = Path.read_text

    def stale(path):
        if path.name == "rank1.beat":
            raise OSError(errno.ESTALE, "Stale file handle")
        return read(path)

    monkeypatch.setattr(Path, "read_text", stale)
    assert files.beats() == {0: "step 1"}
