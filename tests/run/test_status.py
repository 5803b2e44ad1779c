"""Lines of `scaling status` beside its line of progress."""

import dataclasses
import os
import time
from pathlib import Path

import pytest

from scaling.launch.start.slurm import Queue, ask_queue
from scaling.record.files import write_points, write_rows
from scaling.record.running import mark_running
from scaling.run import snakemake
from scaling.run.status import Watcher, status_of
from scaling.study.grid import Plan
from scaling.study.paths import StudyPaths
from tests.points import tiny_point
from tests.processes import write_program
from tests.rows import row_of

DRAINED = (
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
)
SINFO = "#!/bin/sh\necho 'node[1-2] is drained: bad fan'\n"
SQUEUE = """\
#!/bin/sh
case "$SQUEUE_PARTITION$SLURM_TIME_FORMAT $*" in ' --all '*) ;; *) exit 1 ;; esac
echo '7|7|gpu|PENDING|4|90|Priority|N/A|/elsewhere'
echo '9|9|gpu|RUNNING|1|10|None|2026-01-01T00:00:00|{here}'
echo '8|8|gpu|PENDING|2|50|Resources|2026-01-02T03:04:05|{here}'
echo 'slurm_load_jobs error|no'
"""


def points_of(count):
    plain = tiny_point(dp=2)
    return [dataclasses.replace(plain, point_id=f"p{n}", seed=n) for n in range(count)]


@pytest.mark.parametrize(
    ("reason", "said"),
    [(DRAINED, f", {DRAINED}; node[1-2] is drained: bad fan"), ("None", "")],
)
def test_who_waits_for_nodes_is_told_why_once_slurm_has_looked(tmp_path, monkeypatch, reason, said):
    line = f"8|8|gpu|PENDING|2|50|{reason}|N/A|{tmp_path}"
    write_program(tmp_path / "squeue", f"#!/bin/sh\necho '{line}'\n")
    write_program(tmp_path / "sinfo", SINFO)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    (job,) = ask_queue(tmp_path).jobs

    assert job.line == f"job 8, 1 of 1 in gpu, 2 nodes{said}"


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Four points: one is measured, one was slower and extended, one runs, one waits."""
    (tmp_path / "bin").mkdir()
    write_program(tmp_path / "bin" / "squeue", SQUEUE.format(here=tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    # what people set for their own eyes
    monkeypatch.setenv("SQUEUE_PARTITION", "debug")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    monkeypatch.chdir(tmp_path)
    points = points_of(4)
    sharded = dataclasses.replace(points[0].layout, zero_stage=1)
    points[0] = dataclasses.replace(points[0], layout=sharded)
    write_points(tmp_path, Plan(points=tuple(points), refusals=()))
    paths = StudyPaths(tmp_path)
    write_rows(paths.row("p0"), [row_of(points[0], duration_s=1800.0, step_time_s=2.0)])
    extended = {
        "step_time_kind": "extended", "step_time_s": None, "extended_step_time_s": 1.0,
        "extended_low_s": 0.9, "extended_high_s": 1.1, "duration_s": 3600.0,
    }  # fmt: skip
    write_rows(paths.row("p1"), [row_of(points[1], **extended)])
    write_rows(paths.rows / "retried" / "p0.1.parquet", [row_of(points[0], duration_s=1800.0)])
    with mark_running(paths.row("p2"), time_limit_s=100.0):
        yield status_of(Watcher(tmp_path, points), budget_gpu_hours=5.0)


def test_what_runs_where_what_waits_and_why_and_what_is_left_of_the_budget(sweep):
    assert [one.point_id for one in sweep.running] == ["p2"]
    waiting = {job.job_id: job for job in sweep.queue}
    assert waiting.keys() == {"8", "9"}  # of this folder alone
    assert (waiting["8"].position, waiting["8"].waiting) == (2, 2)
    assert waiting["9"].position is None
    assert sweep.gpu_hours_spent == pytest.approx(2 * (0.5 + 1.0 + 0.5), abs=0.01)
    assert sweep.gpu_hours_left == pytest.approx(1.0, abs=0.01)
    (best,) = sweep.best
    assert (best["kind"], best["tokens_per_s"]) == ("extended", pytest.approx(8 * 32 / 1.0))
    text = "\n".join(sweep.lines())
    assert text.startswith("2 done · 1 running · 1 left of 4")
    why = "job 8, 2 of 2 in gpu, 2 nodes, Resources, starts 2026-01-02T03:04"
    for words in (why, "1 node in use", "4.0 rank-hours spent, 1.0 left of the budget"):
        assert words in text
    assert snakemake._describe_queue(Queue(jobs=sweep.queue)) == f" · waits: {why}"
    assert "advised so far at 2, 2 ran: " in text
    assert text.endswith(
        "tokens/s, extended\n    plain data parallelism, micro-batch 4, math attention, fp32"
    )
    assert max(map(len, text.splitlines())) <= 80
    (runs,) = sweep.running
    hour_old = dataclasses.replace(runs, seconds=3600.0)
    assert "runs for 1 h 00 min on " in dataclasses.replace(sweep, running=(hour_old,)).lines()[1]


@pytest.mark.parametrize(
    ("job", "slurm", "answers", "running"),
    [
        ("9", "lab", True, 1), ("6", "lab", True, 0), ("8", "lab", True, 0),
        ("6", "other", True, 1), (None, "lab", True, 1), ("6", "lab", False, 1),
    ],
)  # fmt: skip
def test_no_marker_counts_whose_job_is_over_or_waits_again(
    sweep, monkeypatch, job, slurm, answers, running
):
    write_program(Path("bin/scontrol"), "#!/bin/sh\necho 'ClusterName             = lab'\n")
    if not answers:
        write_program(Path("bin/squeue"), "#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", slurm)
    if job is not None:
        monkeypatch.setenv("SLURM_JOB_ID", job)
    points = [dataclasses.replace(points_of(1)[0], point_id="p3")]
    with mark_running(StudyPaths(Path.cwd()).row("p3"), time_limit_s=100.0):
        assert status_of(Watcher(Path.cwd(), points)).progress.running == running


def test_a_watch_decides_anew_only_on_new_rows(sweep, monkeypatch):
    from scaling.analyse import warehouse

    assert sweep.best
    decided, ask = [], warehouse.ask
    monkeypatch.setattr(warehouse, "ask", lambda *words: decided.append(1) or ask(*words))
    points, paths = points_of(4), StudyPaths(Path.cwd())
    watcher = Watcher(Path.cwd(), points)
    looks = [status_of(watcher), status_of(watcher)]
    assert (looks[0].best, len(decided)) == (looks[1].best, 1)
    write_rows(paths.row("p3"), [row_of(points[3], step_time_s=0.5)])
    (best,) = status_of(watcher).best
    assert (best["kind"], best["of"], len(decided)) == ("measured", 2, 2)


def test_what_runs_counts_as_spent_from_its_start_on(tmp_path, monkeypatch):
    (point,) = points_of(1)
    now = time.time()
    with mark_running(StudyPaths(tmp_path).row("p0"), time_limit_s=1e5):
        monkeypatch.setattr(time, "time", lambda: now + 3600.0)
        status = status_of(Watcher(tmp_path, [point]), budget_gpu_hours=10.0)
    assert status.gpu_hours_spent == pytest.approx(2 * 1.0, abs=0.01)
    assert status.gpu_hours_left == pytest.approx(8.0, abs=0.01)


def test_only_the_first_of_many_points_are_shown(sweep):
    waits = next(job for job in sweep.queue if job.position)
    queue = [dataclasses.replace(waits, job_id=f"j{n}", position=n) for n in range(1, 31)]
    lines = dataclasses.replace(sweep, queue=tuple(queue)).lines()
    shown = [line for line in lines if line.startswith("  waits: ")]
    assert [line.split()[2] for line in shown] == [f"j{n}," for n in range(1, 9)]
    assert "    and 22 more" in lines
