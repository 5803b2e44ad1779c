"""How jobs are finished when the scheduler says strange things, or nothing."""

import errno
import json

import pytest
from snakemake_executor_plugin_submitit.records import Records


def test_a_vanished_job_without_accounting_is_withdrawn_then_lost(run, cluster, clock):
    ours = run("a")
    cluster.begins()
    cluster.known.clear()
    for clock[0] in (0.0, 30.0, 59.0):
        ours.poll()
    assert ours.told("failed") == []
    assert cluster.cancelled == []
    clock[0] = 61.0
    ours.poll()
    assert ours.told("failed") == [("failed", "a", "job 100 is gone for an unknown reason")]
    assert cluster.cancelled == ["100"]
    assert (cluster.folders["100"] / "0.withdrawn").exists()


def test_a_job_that_reappears_was_never_lost(run, cluster, clock):
    ours = run("a")
    cluster.known.clear()
    ours.poll()
    cluster.shows("RUNNING")
    clock[0] += 50.0
    ours.poll()
    cluster.known.clear()
    clock[0] += 20.0
    ours.poll()
    assert ours.told("failed") == []


def test_a_poll_asks_once_for_all_and_not_at_all_when_nothing_is_in_flight(run, cluster):
    ours = run()
    ours.poll()
    assert cluster.queries["squeue"] == 0
    ours.send(*"abcdef")
    assert cluster.queries["squeue"] == 1  # at the start, for what an earlier run has left
    ours.poll()
    assert cluster.queries["squeue"] == 2


@pytest.mark.parametrize("state", ["RUNNING", "NODE_FAIL"])
def test_a_file_system_that_is_away_for_a_moment_loses_no_job(run, cluster, monkeypatch, state):
    ours = run("a")
    cluster.begins()
    cluster.shows(state)
    if state == "RUNNING":
        cluster.finishes(code=3)

    def stale(records, allocation, number):
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patched:
        patched.setattr(Records, "log_of", stale)
        with pytest.raises(OSError, match="Stale"):
            ours.poll()
    assert ours.told("failed") == []
    ours.poll()
    assert len(ours.told("failed")) == 1


DOWN = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"


@pytest.mark.parametrize(
    "reason",
    ["JobHeldUser", "PartitionTimeLimit", "PartitionDown", "QOSMaxGRESPerUser", "AssocGrpGRES",
     "ReqNodeNotAvail, UnavailableNodes:node4", DOWN],
)  # fmt: skip
def test_an_endless_reason_to_wait_is_reported_once(run, cluster, reason):
    ours = run("a", "b")
    ours.told()
    more = f"{reason[:-1]}[4-5]" if reason.endswith("node4") else reason  # nodes come and go
    for said in (reason, more):
        cluster.shows("PENDING", said)
        cluster.shows("PENDING", said, job="101")
        ours.poll()
    assert ours.told("say") == [("say", f"job 100 waits: {reason}")]


def test_jobs_that_wait_for_their_turn_are_not_told_of(run, cluster):
    ours = run("a", "b")
    ours.told()
    cluster.shows("PENDING", "Priority")
    cluster.shows("RUNNING", "None", job="101")
    ours.poll()
    assert ours.told("say") == []


def test_a_cancellation_that_the_scheduler_did_not_take_is_said(run, cluster):
    ours = run("a")
    ours.told()
    cluster.answers = False
    assert ours.cancel() == 0
    assert ours.told("say") == [
        ("say", "the scheduler does not answer: 1 allocations were not cancelled; they run nothing "
         "more, as their jobs are withdrawn")
    ]  # fmt: skip


@pytest.mark.parametrize("word", ["CANCELLED", "FAILED"])
def test_allocations_that_never_finish_a_point_are_given_up_in_the_end(run, cluster, word):
    ours = run("a")
    for _ in range(9):
        for job in cluster.folders:
            cluster.shows(word, job=job)
            if word == "FAILED":  # its point was left for later, as on exit code 75
                cluster.starts(job=job)
        ours.poll()
    assert ours.told("sent", "failed") == [
        *[("sent", "a", str(100 + n)) for n in range(4)],
        ("failed", "a", f"job 103 is {word}"),
    ]


def test_a_missing_log_hints_that_the_folder_is_not_shared(run, cluster):
    ours = run("a")
    cluster.shows("FAILED")
    ours.poll()
    why = f"it has left no log; does its node see {cluster.folders['100']}?"
    assert ours.told("failed") == [("failed", "a", f"job 100 is FAILED: {why}")]


def test_every_interruption_of_a_job_counts_once_in_a_run(run, cluster):
    ours = run("a", max_restarts=3)
    # requeued twice by the scheduler, and then preempted for good
    cluster.starts(restarts=2)
    cluster.shows("PREEMPTED")
    ours.poll()
    assert json.loads((cluster.folders["101"] / "pack.json").read_text())["restarts"] == 0
    cluster.shows("PREEMPTED", job="101")
    ours.poll()
    ours.send("a")  # as Snakemake's `retries` say
    assert ours.told("sent", "failed") == [
        ("sent", "a", "100"),
        ("sent", "a", "101"),
        ("failed", "a", "job 101 is PREEMPTED"),
        ("failed", "a", "it was interrupted 4 times in this run"),
    ]


def test_what_was_left_for_later_is_sent_behind_what_had_no_turn(run, cluster):
    ours = run("returns", "innocent", pack=2)
    cluster.starts()
    (cluster.folders["100"] / "0.returned").write_text(".")
    cluster.shows("FAILED")
    ours.told()
    ours.poll()
    assert ours.told("sent") == [("sent", "innocent", "101"), ("sent", "returns", "101")]


@pytest.mark.parametrize("whole", [True, False])
def test_an_existing_output_counts_as_finished(run, cluster, tmp_path, whole):
    ours = run("a", outputs_are_complete=whole)
    cluster.begins()
    (tmp_path / "a").touch()  # and its end could not be written down
    cluster.shows("FAILED")
    ours.poll()
    told = ("succeeded", "a") if whole else ("failed", "a", "job 100 is FAILED")
    assert ours.told("succeeded", "failed") == [told]
