"""The host that a run on this machine keeps for its points."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from scaling.launch import measure
from scaling.launch.start.forked import local_fork_server
from tests.launch.conftest import in_time
from tests.points import tiny_point
from tests.processes import until

pytestmark = pytest.mark.ranks


def test_points_of_a_run_are_forked_by_its_host_which_ends_with_the_run(study, monkeypatch):
    point = tiny_point(warmup_steps=1, measured_steps=5)
    logs = study.root / "logs" / "tiny"
    with local_fork_server(point, logs) as found:
        (place,) = logs.glob(".host-*")
        host = psutil.Process(int((place / "pid").read_text()))
        monkeypatch.setenv("SCALING_HOST", found["SCALING_HOST"])
        row = measure(study.write(point), study.row_path)
        assert row.outcome == "ok", row.error_message
        assert _stacks_of_a_late_rank_hold(study, "_run_rank")
    assert not host.is_running()
    assert not place.exists()

    # the environment still names it: a point that is started late starts from nothing
    again = measure(study.write(point), study.row_path)
    assert again.outcome == "ok", again.error_message
    assert again.losses == row.losses
    assert again.hosts == row.hosts


def _stacks_of_a_late_rank_hold(study, function):
    def measured(limit_s):
        late = tiny_point(measured_steps=100_000, time_limit_s=limit_s)
        return measure(study.write(late), study.row_path)

    late = in_time(measured, lambda _: study.has_stacks(function))
    assert late.outcome == "timeout", late.error_message
    return study.has_stacks(function)


def test_a_host_ends_by_itself_when_its_run_was_killed(study):
    study.write(tiny_point())
    run = subprocess.Popen([sys.executable, "-c", KEEPS, str(study.point_path), str(study.root)])
    place = study.root / "place"
    until("the run has a host", place.exists)
    folder = Path(place.read_text())
    host = psutil.Process(int((folder / "pid").read_text()))
    until("the host serves", lambda: (folder / "node0").read_text())
    run.kill()
    run.wait()
    host.wait(timeout=300)
    assert not folder.exists()


KEEPS = """
import sys, time
from pathlib import Path
from scaling.launch.start.forked import local_fork_server
from scaling.study.point import point_from_json
root = Path(sys.argv[2])
with local_fork_server(point_from_json(Path(sys.argv[1]).read_text()), root) as found:
    part = root / "part"
    part.write_text(found["SCALING_HOST"])
    part.rename(root / "place")
    time.sleep(600)
"""


def test_ranks_start_from_nothing_where_that_is_asked_for(study, monkeypatch):
    monkeypatch.setenv("SCALING_HOSTS", "0")
    with local_fork_server(tiny_point(), study.root) as found:
        assert found == {}
    with local_fork_server(None, study.root) as found:
        assert found == {}
