"""Submissions, and what becomes of them if the scheduler does not take it."""

import json

import pytest
from snakemake_executor_plugin_submitit.schedulers.slurm.words import kind_of

from tests.executor.conftest import wanted_jobs


def test_a_pack_asks_for_no_more_time_than_the_scheduler_gives(run, cluster, tmp_path):
    dispatcher, _ = run(pack=8, pack_minutes=240)
    cluster.longest = 12
    dispatcher.submit(wanted_jobs(tmp_path, *"abc"))

    packs = sorted((tmp_path / ".snakemake/submitit").glob("*/pack.json"))
    assert sorted(len(json.loads(pack.read_text())["items"]) for pack in packs) == [1, 2]


def test_unknown_refusals_are_sent_again(run, cluster, tmp_path, clock):
    dispatcher, listener = run()
    cluster.refusal = "Batch job submission failed: the moon is full"
    dispatcher.submit(wanted_jobs(tmp_path, "a"))
    dispatcher.poll()
    assert listener.take("failed") == []
    for _ in range(20):
        clock[0] += 300
        dispatcher.poll()

    assert listener.take("failed") == [
        ("failed", "a", f"the scheduler refused it: {cluster.refusal}")
    ]
    assert cluster.asked == 7
    cluster.refusal = None
    dispatcher.submit(wanted_jobs(tmp_path, "a"))
    assert [event[1] for event in listener.take("sent")] == ["a"]


def test_a_limit_is_asked_for_less_and_less_often_until_something_ends(
    run, cluster, tmp_path, clock
):
    dispatcher, listener = run()
    dispatcher.submit(wanted_jobs(tmp_path, "first"))
    cluster.refusal = "QOSMaxSubmitJobPerUserLimit"
    dispatcher.submit(wanted_jobs(tmp_path, *"abcdefghij"))
    for clock[0] in range(1000, 1100):
        dispatcher.poll()

    assert cluster.asked == 1 + 5  # at 0, 5, 15, 35 and 75 s, once for all ten
    assert len(list((tmp_path / ".snakemake/submitit").glob("*/pack.json"))) == 1  # of the first
    cluster.refusal = None
    cluster.finish("100", 0)
    dispatcher.poll()
    assert len(listener.take("sent")) == 1 + 10


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Batch job submission failed: Zero Bytes were transmitted or received", "later"),
        ("Batch job submission failed: Socket timed out on send/recv operation", "later"),
        ("Unable to contact slurm controller (connect failure)", "later"),
        (
            "Slurm temporarily unable to accept job, sleeping and retrying; Socket timed out",
            "later",
        ),
        ("Batch job submission failed: I/O error writing script/environment to file", "unknown"),
        ("Invalid authentication credential", "unknown"),
        (
            "QOSMaxSubmitJobPerUserLimit; Job violates accounting/QOS policy (job submit limit)",
            "later",
        ),
        ("QOSMaxWallDurationPerJobLimit; Job violates accounting/QOS policy", "refused"),
        ("Batch job submission failed: Invalid qos specification", "refused"),
        ("Batch job submission failed: Requested node configuration is not available", "refused"),
        ("unrecognized option '--frobnicate'", "refused"),
        ("'east' can't be reached now, or it is an invalid entry for --cluster.", "unknown"),
    ],
)
def test_what_sbatch_says_is_final_only_where_its_words_are_known(said, kind):
    assert kind_of(said) == kind


def test_submission_waits_for_disk_space_and_orphans_run_nothing(run, cluster, tmp_path, clock):
    dispatcher, listener = run()
    send = cluster.send

    def broken(*arguments, **named):
        send(*arguments, **named)
        raise OSError(28, "No space left on device")

    cluster.send = broken
    dispatcher.submit(wanted_jobs(tmp_path, "a"))
    assert not cluster.folders["100"].exists()
    assert "No space left on device; 1 jobs wait" in listener.take("say")[0][1]
    cluster.send = send
    clock[0] += 5
    dispatcher.poll()

    assert cluster.cancelled == ["100"]
    assert listener.take("sent", "failed") == [("sent", "a", "101")]


def test_nothing_is_sent_whose_results_could_not_be_written(
    run, cluster, tmp_path, clock, monkeypatch
):
    dispatcher, listener = run()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tempfile.TemporaryFile", full)
        dispatcher.submit(wanted_jobs(tmp_path, "a"))
        for _ in range(5):
            clock[0] += 400
            dispatcher.poll()
        assert cluster.asked == 0
    clock[0] += 400
    dispatcher.poll()

    assert listener.take("sent", "failed") == [("sent", "a", "100")]


def test_points_to_be_repeated_wait_for_the_end_of_their_pack(run, cluster, tmp_path):
    dispatcher, listener = run(pack=3)
    three = wanted_jobs(tmp_path, "a", "b", "c")
    dispatcher.submit(three)
    for number in range(3):
        listener.take()
        cluster.finish("100", number, code=1)
        dispatcher.poll()
        dispatcher.submit([three[number]])  # as Snakemake does at once
    dispatcher.poll()

    assert listener.take("sent") == [("sent", name, "101") for name in "abc"]


def test_no_more_are_in_flight_than_allowed_and_the_rest_follows(run, cluster, tmp_path):
    dispatcher, listener = run(pack=2, max_allocations=1)
    dispatcher.submit(wanted_jobs(tmp_path, "a", "b", "c"))
    assert [event[1] for event in listener.take("sent")] == ["a", "b"]
    cluster.finish("100", 0)
    dispatcher.poll()
    assert listener.take("sent") == []
    cluster.finish("100", 1)

    dispatcher.poll()

    assert listener.take("sent") == [("sent", "c", "101")]


def test_a_ctrl_c_just_after_a_job_was_sent_cancels_it(run, cluster, tmp_path, monkeypatch):
    dispatcher, listener = run()

    def interrupted(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(listener, "say", interrupted)
        with pytest.raises(KeyboardInterrupt):
            dispatcher.submit(wanted_jobs(tmp_path, "a", "b"))

    assert dispatcher.cancel() == 1
    assert cluster.cancelled == ["100"]


def test_a_refusal_for_good_is_not_asked_again(run, cluster, tmp_path):
    dispatcher, listener = run()
    cluster.refusal = "invalid partition specified: x"
    dispatcher.submit(wanted_jobs(tmp_path, "b"))
    cluster.refusal = None
    dispatcher.submit(wanted_jobs(tmp_path, "b"))

    said = "the scheduler refused it: invalid partition specified: x"
    assert listener.take("sent", "failed") == [("failed", "b", said)] * 2
