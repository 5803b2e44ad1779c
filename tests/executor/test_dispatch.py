"""How jobs are finished when the scheduler says strange things, or nothing."""

import errno
import json

import pytest
from snakemake_executor_plugin_submitit.pack import write_json
from snakemake_executor_plugin_submitit.records import Records
from snakemake_executor_plugin_submitit.schedulers.slurm.words import state_of

from tests.executor.conftest import wanted_jobs


def test_a_vanished_job_without_accounting_is_withdrawn_then_lost(run, cluster, tmp_path, clock):
    dispatcher, listener = run()
    dispatcher.submit(wanted_jobs(tmp_path, "a"))
    cluster.begin("100", 0)
    cluster.known.clear()

    for clock[0] in (0.0, 30.0, 59.0):
        dispatcher.poll()
    assert listener.take("failed") == []
    assert cluster.cancelled == []
    clock[0] = 61.0
    dispatcher.poll()

    assert listener.take("failed") == [("failed", "a", "job 100 is gone for an unknown reason")]
    assert cluster.cancelled == ["100"]
    assert (cluster.folders["100"] / "0.withdrawn").exists()


def test_a_job_that_reappears_was_never_lost(run, cluster, tmp_path, clock):
    dispatcher, listener = run()
    dispatcher.submit(wanted_jobs(tmp_path, "a"))
    cluster.known.clear()
    dispatcher.poll()
    cluster.known["100"] = state_of("RUNNING")
    clock[0] += 50.0
    dispatcher.poll()
    cluster.known.clear()
    clock[0] += 20.0
    dispatcher.poll()

    assert listener.take("failed") == []


def test_a_poll_asks_once_for_all_and_not_at_all_when_nothing_is_in_flight(run, cluster, tmp_path):
    dispatcher, _ = run()
    dispatcher.poll()
    assert cluster.queries["squeue"] == 0
    dispatcher.submit(wanted_jobs(tmp_path, *"abcdef"))
    assert cluster.queries["squeue"] == 1  # at the start, for what an earlier run has left

    dispatcher.poll()

    assert cluster.queries["squeue"] == 2


@pytest.mark.parametrize("state", ["RUNNING", "NODE_FAIL"])
def test_a_file_system_that_is_away_for_a_moment_loses_no_job(
    run, cluster, tmp_path, monkeypatch, state
):
    dispatcher, listener = run()
    dispatcher.submit(wanted_jobs(tmp_path, "a"))
    cluster.begin("100", 0)
    cluster.known["100"] = state_of(state)
    if state == "RUNNING":
        cluster.finish("100", 0, code=3)

    def stale(records, allocation, number):
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patched:
        patched.setattr(Records, "log_of", stale)
        with pytest.raises(OSError, match="Stale"):
            dispatcher.poll()
    assert listener.take("failed") == []
    dispatcher.poll()

    assert len(listener.take("failed")) == 1


@pytest.mark.parametrize(
    "reason",
    [
        "JobHeldUser",
        "PartitionTimeLimit",
        "PartitionDown",
        "QOSMaxGRESPerUser",
        "AssocGrpGRES",
        "ReqNodeNotAvail, UnavailableNodes:node4",
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority "
        "partitions",
    ],
)
def test_an_endless_reason_to_wait_is_reported_once(run, cluster, tmp_path, reason):
    dispatcher, listener = run()
    dispatcher.submit(wanted_jobs(tmp_path, "a", "b"))
    listener.take()
    cluster.known |= dict.fromkeys(("100", "101"), state_of("PENDING", reason))

    dispatcher.poll()
    more = f"{reason[:-1]}[4-5]" if reason.endswith("node4") else reason  # nodes come and go
    cluster.known |= dict.fromkeys(("100", "101"), state_of("PENDING", more))
    dispatcher.poll()

    assert listener.take("say") == [("say", f"job 100 waits: {reason}")]


def test_jobs_that_wait_for_their_turn_are_not_told_of(run, cluster, tmp_path):
    dispatcher, listener = run()
    dispatcher.submit(wanted_jobs(tmp_path, "a", "b"))
    listener.take()
    cluster.known |= {"100": state_of("PENDING", "Priority"), "101": state_of("RUNNING", "None")}

    dispatcher.poll()

    assert listener.take("say") == []


def test_a_cancellation_that_the_scheduler_did_not_take_is_said(run, cluster, tmp_path):
    dispatcher, listener = run()
    dispatcher.submit(wanted_jobs(tmp_path, "a"))
    listener.take()
    cluster.answers = False

    assert dispatcher.cancel() == 0

    assert listener.take("say") == [
        ("say", "the scheduler does not answer: 1 allocations were not cancelled; they run nothing "
         "more, as their jobs are withdrawn")
    ]  # fmt: skip


@pytest.mark.parametrize("word", ["CANCELLED", "FAILED"])
def test_allocations_that_never_finish_a_point_are_given_up_in_the_end(
    run, cluster, tmp_path, word
):
    dispatcher, listener = run()
    dispatcher.submit(wanted_jobs(tmp_path, "a"))
    for _ in range(9):
        for job, folder in cluster.folders.items():
            cluster.known[job] = state_of(word)
            if word == "FAILED":  # its point was left for later, as on exit code 75
                write_json(folder / "started.json", {})
        dispatcher.poll()

    assert [event[1:] for event in listener.take("sent", "failed")] == [
        *[("a", str(100 + n)) for n in range(4)],
        ("a", f"job 103 is {word}"),
    ]


def test_a_missing_log_hints_that_the_folder_is_not_shared(run, cluster, tmp_path):
    dispatcher, listener = run()
    dispatcher.submit(wanted_jobs(tmp_path, "a"))
    cluster.known["100"] = state_of("FAILED")
    dispatcher.poll()

    ((_, _, why),) = listener.take("failed")
    batch = cluster.folders["100"]
    assert why == f"job 100 is FAILED: it has left no log; does its node see {batch}?"


def test_every_interruption_of_a_job_counts_once_in_a_run(run, cluster, tmp_path):
    dispatcher, listener = run(max_restarts=3)
    (job,) = wanted_jobs(tmp_path, "a")
    dispatcher.submit([job])
    # requeued twice by the scheduler, and then preempted for good
    write_json(cluster.folders["100"] / "started.json", {"restarts": 2})
    cluster.known["100"] = state_of("PREEMPTED")
    dispatcher.poll()
    assert json.loads((cluster.folders["101"] / "pack.json").read_text())["restarts"] == 0
    cluster.known["101"] = state_of("PREEMPTED")
    dispatcher.poll()
    dispatcher.submit([job])  # as Snakemake's `retries` say

    assert listener.take("sent", "failed") == [
        ("sent", "a", "100"),
        ("sent", "a", "101"),
        ("failed", "a", "job 101 is PREEMPTED"),
        ("failed", "a", "it was interrupted 4 times in this run"),
    ]


def test_what_was_left_for_later_is_sent_behind_what_had_no_turn(run, cluster, tmp_path):
    dispatcher, listener = run(pack=2)
    dispatcher.submit(wanted_jobs(tmp_path, "returns", "innocent"))
    write_json(cluster.folders["100"] / "started.json", {"restarts": 0})
    (cluster.folders["100"] / "0.returned").write_text(".")
    cluster.known["100"] = state_of("FAILED")
    listener.take()
    dispatcher.poll()

    assert listener.take("sent") == [("sent", "innocent", "101"), ("sent", "returns", "101")]


@pytest.mark.parametrize("whole", [True, False])
def test_an_existing_output_counts_as_finished(run, cluster, tmp_path, whole):
    dispatcher, listener = run(outputs_are_complete=whole)
    dispatcher.submit(wanted_jobs(tmp_path, "a"))
    cluster.begin("100", 0)
    (tmp_path / "a").touch()  # and its end could not be written down
    cluster.known["100"] = state_of("FAILED")
    dispatcher.poll()

    told = ("succeeded", "a") if whole else ("failed", "a", "job 100 is FAILED")
    assert listener.take("succeeded", "failed") == [told]
