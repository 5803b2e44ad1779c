"""How far a study is, and which points run again."""

import datetime
import json
import os
import socket
import subprocess
import sys
import time

import psutil
import pyarrow as pa
import pytest

from scaling.errors import InputError
from scaling.record import files
from scaling.record.running import mark_running
from scaling.run import retry
from scaling.run.status import Watcher, progress_of
from scaling.study import grid
from scaling.study.load import load_study
from scaling.study.paths import StudyPaths
from tests.processes import ended_pid
from tests.rows import row_of


@pytest.fixture
def points(config, write_study):
    study = write_study(layouts=[{"zero_stage": [0, 1, 2, 3]}])
    return grid.expand_grid(load_study(study, config)).points


def put(study_dir, point, **changes):
    files.write_rows(study_dir / "rows" / f"{point.point_id}.parquet", [row_of(point, **changes)])


def mark(study_dir, point, *, pid, host=None, time_limit_s=60.0, ago_s=0.0, younger_s=0.0):
    (study_dir / "rows").mkdir(exist_ok=True)
    marker = study_dir / "rows" / f"{point.point_id}.running"
    started = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=ago_s)
    said = {
        "pid": pid,
        "host": host or socket.gethostname(),
        "started_at": started.isoformat(),
        "time_limit_s": time_limit_s,
        "since_boot_s": 0.0,
    }
    if psutil.pid_exists(pid):
        said["since_boot_s"] = psutil.Process(pid).create_time() - psutil.boot_time() - younger_s
    marker.write_text(json.dumps(said))
    return marker


def test_every_point_is_counted_once(points, tmp_path):
    put(tmp_path, points[0])
    put(tmp_path, points[1], outcome="oom")
    mark(tmp_path, points[2], pid=os.getpid())
    seen = Watcher(tmp_path, points).look()
    assert (seen.done, dict(seen.failed), seen.running, seen.left) == (1, {"oom": 1}, 1, 5)
    assert seen.line().startswith("1 done · 1 failed (oom 1) · 1 running · 5 left of 8")


def test_the_time_left_is_judged_by_points_of_the_same_size(points):
    small = [p for p in points if p.layout.world_size == 1]
    large = [p for p in points if p.layout.world_size == 2]
    settled = {
        small[0].point_id: {"outcome": "ok", "duration_s": 10, "world_size": 1},
        large[0].point_id: {"outcome": "oom", "duration_s": 20, "world_size": 2},
    }
    assert progress_of(points, settled, set()).seconds_left == 3 * 10 + 3 * 20
    two_at_once = {small[1].point_id, large[1].point_id}
    assert progress_of(points, settled, two_at_once).seconds_left == (3 * 10 + 3 * 20) / 2


@pytest.mark.parametrize(
    ("facts", "running"),
    [
        ({"pid": ended_pid()}, 0),
        ({"pid": os.getpid(), "younger_s": 1.0}, 0),  # a reused number
        # of another host: until its limit is long past
        ({"pid": 1, "host": "elsewhere"}, 1),
        ({"pid": 1, "host": "elsewhere", "ago_s": 3600.0}, 0),
    ],
)
def test_a_marker_counts_while_its_process_may_live(points, tmp_path, facts, running):
    mark(tmp_path, points[0], **facts)
    assert Watcher(tmp_path, points).look().running == running


def test_a_local_process_counts_beyond_its_limit(points, tmp_path):
    # it was suspended, or waited for torch to be imported; the file server is an hour behind
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as late:
        marker = mark(tmp_path, points[0], pid=late.pid, time_limit_s=-1000.0)
        os.utime(marker, (time.time() - 3600,) * 2)
        assert Watcher(tmp_path, points).look().running == 1
        late.kill()


def test_who_ends_late_leaves_the_marker_of_the_restart_on_another_host(points, tmp_path):
    row = tmp_path / "rows" / f"{points[0].point_id}.parquet"
    with mark_running(row, time_limit_s=60.0):
        mark(tmp_path, points[0], pid=1, host="elsewhere")
    assert Watcher(tmp_path, points).look().running == 1


def test_a_row_that_is_set_aside_is_wanted_again(points, tmp_path):
    put(tmp_path, points[0], outcome="timeout")
    put(tmp_path, points[1], outcome="oom")
    watcher = Watcher(tmp_path, points)
    assert watcher.look().left == 6
    assert retry.set_aside(tmp_path, {"timeout"}) == 1
    seen = watcher.look()
    assert (seen.left, dict(seen.failed)) == (7, {"oom": 1})
    kept = tmp_path / "rows" / "retried" / f"{points[0].point_id}.1.parquet"
    assert kept.exists()
    # another of that number, as when two have measured the point
    put(tmp_path, points[0], outcome="timeout")
    assert retry.set_aside(tmp_path, {"timeout"}) == 1
    assert len(list(kept.parent.glob("*.parquet"))) == 2


@pytest.mark.parametrize(("mem_mb", "again"), [(2048, 0), (4096, 1), (0, 1)])
def test_a_point_killed_by_the_memory_limit_runs_again_once_more_is_asked(
    points, tmp_path, mem_mb, again
):
    put(tmp_path, points[0], outcome="error", memory_limit_bytes=2 * 2**30)
    put(tmp_path, points[1], outcome="error")
    assert retry.set_aside_for_memory(tmp_path, mem_mb) == again


def test_outcomes_to_retry_are_named_or_told_wrong():
    assert retry.outcomes("timeout, node_failed") == {"timeout", "node_failed"}
    with pytest.raises(InputError, match="'time-out' is no failure: did you mean 'timeout'"):
        retry.outcomes("time-out")
    with pytest.raises(InputError, match="'ok' is no failure"):
        retry.outcomes("ok")
    with pytest.raises(InputError, match="is empty"):
        retry.outcomes(" , ")


def test_a_choice_that_is_being_replaced_or_broken_skips_nobody(points, tmp_path):
    paths = StudyPaths(tmp_path)
    skipped = {"point_id": [points[0].point_id], "chosen": [False], "measured": [False]}
    files.write_table(paths.round(1), pa.table(skipped))
    paths.round(2).write_bytes(b"PAR1")
    assert Watcher(tmp_path, points, has_rounds=True).look().total == len(points) - 1


def test_a_row_that_cannot_be_read_is_no_settled_point(points, tmp_path):
    put(tmp_path, points[0])
    whole = tmp_path / "rows" / f"{points[0].point_id}.parquet"
    for number, content in enumerate([b"", b"PAR1", whole.read_bytes()[:-20]], start=1):
        (tmp_path / "rows" / f"{points[number].point_id}.parquet").write_bytes(content)
    assert Watcher(tmp_path, points).look().done == 1
