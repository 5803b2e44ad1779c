"""How often a rank reports its steps."""

import time
from pathlib import Path

from scaling.record.rank_files import RankFiles
from scaling.train.program import Beats


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
