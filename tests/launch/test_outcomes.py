"""How ranks end, and what the row says. The ranks are real processes with scripts of their own."""

import dataclasses
import errno
import json
import os
import sys

import pytest
from typer.testing import CliRunner

from scaling.cli.verbs import app
from scaling.errors import CannotWrite
from scaling.launch import NodeLost, NotMeasured, measure
from scaling.launch.start.local import start_local
from scaling.launch.start.starter import LaunchError
from scaling.record.files import write_rows
from scaling.run.retry import set_aside
from tests.launch.conftest import in_time
from tests.points import tiny_point
from tests.processes import is_running, largest_file, until
from tests.rows import row_of

STEPS_ON = """
for step in range(10_000):
    files.beat(rank, f"step {step}")
    time.sleep(0.05)
"""


pytestmark = pytest.mark.slow


def test_timed_steps_are_not_lost_with_a_rank_that_ends_under_the_profiler(
    measured, tmp_path, monkeypatch
):
    released = tmp_path / "released"
    monkeypatch.setenv("SUBMITIT_RELEASED", str(released))
    row = measured(
        """
finish([2.0], leave=files.keep)
while len(files.timed()) < 2:
    time.sleep(0.02)
if rank == 1:
    files.write(rank, RankFailure(outcome="oom", message="CUDA out of memory", failed_at=1.0))
    sys.exit(1)
time.sleep(600)
""",
        dp=2,
    )
    assert (row.outcome, row.error_message, row.step_times_s) == ("ok", None, [2.0])
    assert row.compute_s is None
    assert not released.exists()  # ranks that were killed may have left processes behind


def test_ranks_that_still_get_further_at_the_limit_are_late(measured):
    said = "the time limit passed while ranks ran (last heard of rank 0: step"
    row = in_time(
        lambda limit_s: measured(STEPS_ON, time_limit_s=limit_s),
        lambda row: said in str(row.error_message),
    )
    assert (row.outcome, said in row.error_message) == ("timeout", True)


def test_a_rank_that_ends_without_a_result_does_not_keep_the_others(measured):
    row = measured("rank == 1 or time.sleep(600)", dp=2, hang_after_s=300.0, time_limit_s=600.0)
    said = "rank 1 ended with exit code 0 and no result: no line of its log is an error"
    assert (row.outcome, row.error_message) == ("error", said)
    assert row.duration_s < 200


WAITS_FOR_EVER = """
def wait_for_ever():
    time.sleep(600)
files.beat(rank, "step 3 of 10")
{0}
wait_for_ever()
"""


@pytest.mark.parametrize(
    ("stops", "said"),
    [
        ("", "ranks 0-1: step 3 of 10"),
        ("rank == 0 or os.kill(os.getpid(), signal.SIGSTOP)", "rank 1 did not answer"),
    ],
)
def test_ranks_that_get_no_further_hang_and_leave_their_stacks(measured, study, stops, said):
    row = in_time(
        lambda limit_s: measured(WAITS_FOR_EVER.format(stops), dp=2, hang_after_s=limit_s),
        lambda row: said in str(row.error_message),
    )
    assert (row.outcome, said in row.error_message) == ("hang", True)
    assert all("wait_for_ever" in study.log(rank) for rank in ((0,) if stops else (0, 1)))


def test_ranks_of_two_nodes_that_only_lost_each_other_run_on_other_nodes(study):
    body = """
files.write(rank, RankFailure(outcome="error", message="Connection closed by peer", failed_at=1.0))
while len(files.read(RankFailure)) < 2:
    time.sleep(0.02)
sys.exit(1)
"""
    path = study.write(tiny_point(dp=2, gpus_per_node=1, measured_steps=1))

    def start(launch):
        here = dataclasses.replace(tiny_point(dp=2), gpus_per_node=2)
        return start_local(dataclasses.replace(launch, task=here))

    said = "node_failed: the network between the nodes was cut: rank 0: Connection closed by peer"
    with pytest.raises(NodeLost, match=said):
        measure(path, study.row_path, rank_command=study.program(body), start=start)
    assert not study.row_path.exists()


def test_a_rank_that_hangs_while_it_parts_has_measured_all_the_same(measured, monkeypatch):
    monkeypatch.setattr("scaling.launch.judge._EXIT_S", 0.5)
    assert measured("finish(); time.sleep(600)").outcome == "ok"


@pytest.mark.parametrize(
    ("layout", "command", "message"),
    [
        ({}, [sys.executable, "-c", "import no_such_module"],
         "ModuleNotFoundError: No module named 'no_such_module'"),
        ({"dp": 2}, ["/no/such/program"], "rank 0 could not be started"),
        ({"dp": 4, "gpus_per_node": 2}, ["any"], "needs more than one node of 2 GPUs"),
    ],
)  # fmt: skip
def test_a_program_that_cannot_start_was_not_launched(study, layout, command, message):
    row = measure(study.write(tiny_point(**layout)), study.row_path, rank_command=command)
    assert row.outcome == "launch_failed"
    assert message in row.error_message


def test_what_a_rank_started_ends_with_it(measured, study):
    row = measured(
        """
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
finish()
"""
    )
    assert row.outcome == "ok"
    child = int(study.log(0).strip())
    until("what was killed dies", lambda: not is_running(child))  # when it gets a core


def test_a_rank_ended_from_outside_leaves_no_row(measured, study):
    with pytest.raises(NotMeasured, match="rank 1 was killed by SIGTERM") as told:
        measured("os.kill(os.getpid(), signal.SIGTERM) if rank == 1 else time.sleep(600)", dp=2)
    assert told.value.exit_code == os.EX_TEMPFAIL
    assert list(study.rows.iterdir()) == []


@pytest.mark.parametrize("raised", NotMeasured.__subclasses__(), ids=lambda kind: kind.__name__)
def test_no_verdict_has_a_reason_and_an_exit_code_of_its_own(raised, monkeypatch):
    def unsettled(*_, **_options):
        raise raised("for this \x1b reason")

    monkeypatch.setattr("scaling.launch.measure", unsettled)
    said = CliRunner().invoke(app, ["measure", "points/p.json", "rows/p.parquet"])
    assert (said.exit_code, said.stderr) == (raised.exit_code, "p: for this \\x1b reason\n")


def test_what_was_measured_is_told_where_the_disk_is_full(measured, study, monkeypatch, capsys):
    def full(path, _):
        raise CannotWrite(f"{path}: cannot be written: No space left on device")

    monkeypatch.setattr("scaling.launch.point.write_rows", full)
    with pytest.raises(NotMeasured, match="No space left on device") as told:
        measured("finish([1.0, 3.0])", measured_steps=2)
    assert str(told.value).startswith(f"{study.row_path}: ")
    known = json.loads(capsys.readouterr().err)
    assert (known["step_times_s"], known["outcome"]) == ([1.0, 3.0], "ok")
    assert list(study.rows.iterdir()) == []


def test_where_a_row_has_no_room_nothing_is_measured_in_vain(measured, study):
    no_room = pytest.raises(NotMeasured, match=": cannot be written: File too large")
    with largest_file(100_000), no_room:
        measured("print('ran'); finish()")
    assert not study.logs.exists()


def test_no_visible_gpu_leaves_no_row_in_a_job_and_an_error_elsewhere(measured, study, monkeypatch):
    missing = "n3 shows 0 of the 1 GPUs"
    monkeypatch.setattr("scaling.launch.point.missing_devices", lambda *_: missing)
    row = measured("finish()")
    assert (row.outcome, row.error_message) == ("launch_failed", missing)
    study.row_path.unlink()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(NotMeasured, match=missing) as told:
        measured("finish()")
    assert told.value.exit_code == 76
    assert list(study.rows.iterdir()) == []


def test_files_that_cannot_be_removed_afterwards_cost_no_measurement(measured, study, monkeypatch):
    def busy(*_, **__):  # as on NFS while somebody has a file open
        raise OSError(errno.EBUSY, "Device or resource busy")

    with monkeypatch.context() as patched:
        patched.setattr(os, "rmdir", busy)
        assert measured("finish()").outcome == "ok"
        study.row_path.unlink()
        assert measured("finish()").outcome == "ok"
    marker = f"Path({str(study.marker)!r})"
    study.row_path.unlink()
    assert measured(f"{marker}.unlink(); {marker}.mkdir(); finish()").outcome == "ok"
    assert study.row_path.exists()


def test_a_failed_launch_in_a_job_is_tried_three_times(study, monkeypatch):
    def fails(launch):
        raise LaunchError("srun failed 3 times: Socket timed out")

    path = study.write(tiny_point(measured_steps=1))
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    for attempt in (1, 2):
        with pytest.raises(NodeLost, match=rf"srun failed 3 times.*\(attempt {attempt}\)"):
            measure(path, study.row_path, start=fails)
    row = measure(path, study.row_path, start=fails)
    assert (row.outcome, row.attempt) == ("launch_failed", 3)
    assert study.row_path.exists()


def test_only_attempts_that_lost_a_node_count_as_such(measured, study, monkeypatch):
    monkeypatch.setattr("scaling.launch.ranks.lost_nodes", lambda *_, silent: ["n1 (down)"])
    point = tiny_point(measured_steps=1)
    for attempt in (1, 2):  # a user has had them repeated
        late = row_of(point, outcome="timeout", step_time_s=None, attempt=attempt)
        write_rows(study.rows / "retried" / f"tiny.{attempt}.parquet", [late])
    for first in (3, 6):  # again as often once the last one is moved
        for attempt in (first, first + 1):
            with pytest.raises(
                NotMeasured, match=rf"\(attempt {attempt}\); it is to run elsewhere"
            ):
                measured("finish()")
        assert measured("finish()").outcome == "node_failed"
        assert set_aside(study.rows.parent, {"node_failed"}) == 1


def test_a_log_folder_that_cannot_be_made_is_named(measured, study):
    (study.root / "logs").write_text("in the way")
    with pytest.raises(NotMeasured, match=f"{study.root}/logs"):
        measured("finish()")


def test_a_step_in_which_all_stood_still_is_no_measurement(measured, study, monkeypatch):
    monkeypatch.setattr("scaling.launch.judge._SUSPENDED_S", -1.0)  # every look is one
    monkeypatch.setattr("scaling.launch.point._SUSPENDED_SHARE", 0.0)
    assert measured("finish([1.0, 1.0])", measured_steps=2).outcome == "ok"
    study.row_path.unlink()
    with pytest.raises(NotMeasured, match="within a measured step"):
        measured("finish([1.0, 1.0, 31.0])", measured_steps=3)
    assert not study.row_path.exists()


@pytest.mark.parametrize(("body", "outcome"), [("finish()", "ok"), ("sys.exit(1)", "error")])
def test_the_next_point_starts_early_only_if_all_ranks_ended_well(
    measured, tmp_path, monkeypatch, body, outcome
):
    released = tmp_path / "released"
    monkeypatch.setenv("SUBMITIT_RELEASED", str(released))
    assert measured(body).outcome == outcome
    assert released.exists() == (outcome == "ok")
