"""A study of one point, measured by stand-ins for ranks or by real ones."""

import sys

import pytest

from scaling.launch import measure
from scaling.launch.start.local import start_local
from tests.points import tiny_point

# The start of a stand-in for a rank; it speaks to the parent as a real one does.
PREAMBLE = """
import faulthandler, os, signal, sys, time
from pathlib import Path
from scaling.record.rank_files import RankFailure, RankFiles, RankResult
faulthandler.register(signal.SIGUSR1, all_threads=True)
rank, files = int(os.environ["RANK"]), RankFiles(Path(sys.argv[-1]))
def finish(step_times_s=[1.0], losses=[5.0], peak=100, leave=files.write):
    leave(rank, RankResult(clock="perf_counter", step_times_s=step_times_s, losses=losses,
        grad_norms=None, peak_memory_bytes=peak, peak_reserved_bytes=None,
        memory_meter="process_rss", first_step_at=time.time()))
files.beat(rank, "started")
"""

# A launcher, as a process of its own: the point's file, the row's, perhaps the command of a rank.
LAUNCHER = """
import sys
from pathlib import Path
from scaling.launch import NotMeasured, measure
try:
    command = {"rank_command": sys.argv[3:]} if sys.argv[3:] else {}
    measure(Path(sys.argv[1]), Path(sys.argv[2]), **command)
except NotMeasured as why:
    print(why, file=sys.stderr)
    sys.exit(why.exit_code)
"""


class Study:
    """A study's folder with one point in it."""

    def __init__(self, root):
        self.root = root
        self.rows = root / "results" / "tiny" / "rows"
        self.row_path = self.rows / "tiny.parquet"
        self.marker = self.rows / "tiny.running"
        self.logs = root / "logs" / "tiny" / "ranks" / "tiny"
        self.point_path = root / "results" / "tiny" / "points" / "tiny.json"

    def write(self, point):
        self.point_path.parent.mkdir(parents=True, exist_ok=True)
        self.point_path.write_text(point.to_json())
        return self.point_path

    def program(self, body):
        """The command of a rank that does what `body` says."""
        path = self.root / "rank.py"
        path.write_text(PREAMBLE + body)
        return [sys.executable, str(path)]

    def log(self, rank):
        return (self.logs / f"rank{rank}.log").read_text()

    def has_stacks(self, *functions, ranks=1):
        """Whether each rank left its stacks, with these functions in them."""
        if not all((self.logs / f"rank{rank}.log").exists() for rank in range(ranks)):
            return False
        wanted = ("most recent call first", *(f"in {function}" for function in functions))
        return all(text in self.log(rank) for rank in range(ranks) for text in wanted)


@pytest.fixture
def study(tmp_path):
    return Study(tmp_path)


TWO_RANKS = tiny_point(dp=2, zero_stage=1, warmup_steps=1, measured_steps=5)


@pytest.fixture(scope="session")
def cold(tmp_path_factory):
    """The row of TWO_RANKS, real ones of this machine that start from nothing."""
    study = Study(tmp_path_factory.mktemp("cold"))
    return measure(study.write(TWO_RANKS), study.row_path, start=start_local)


def in_time(run, far_enough):
    """The row of a run within a time in which its ranks come far enough, on any machine."""
    for limit_s in (1.5, 6.0, 24.0, 96.0):
        row = run(limit_s)
        if far_enough(row):
            break
    return row


@pytest.fixture
def measured(study):
    """Measure a tiny point whose ranks do what `body` says."""

    def run(body, *, hang_after_s=60.0, **point):
        path = study.write(tiny_point(**({"measured_steps": 1} | point)))
        command = study.program(body)
        return measure(path, study.row_path, rank_command=command, hang_after_s=hang_after_s)

    return run
