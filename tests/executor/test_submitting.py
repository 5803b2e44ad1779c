"""Submissions, and what becomes of them if the scheduler does not take it."""

import json

import pytest
from snakemake_executor_plugin_submitit.schedulers.slurm.words import kind_of

NO_SPACE = OSError(28, "No space left on device")


def packs_in(folder):
    return [json.loads(path.read_text()) for path in folder.glob(".snakemake/submitit/*/pack.json")]


def test_a_pack_asks_for_no_more_time_than_the_scheduler_gives(run, cluster, tmp_path):
    cluster.longest = 12
    run(*"abc", pack=8, pack_minutes=240)
    assert sorted(len(pack["items"]) for pack in packs_in(tmp_path)) == [1, 2]


def test_unknown_refusals_are_sent_again(run, cluster, clock):
    cluster.refusal = "Batch job submission failed: the moon is full"
    ours = run("a")
    ours.poll()
    assert ours.told("failed") == []
    for _ in range(20):
        clock[0] += 300
        ours.poll()
    why = f"the scheduler refused it: {cluster.refusal}"
    assert ours.told("failed") == [("failed", "a", why)]
    assert cluster.asked == 7
    cluster.refusal = None
    ours.send("a")
    assert [event[1] for event in ours.told("sent")] == ["a"]


def test_a_limit_is_asked_for_less_and_less_often_until_something_ends(
    run, cluster, tmp_path, clock
):
    ours = run("first")
    cluster.refusal = "QOSMaxSubmitJobPerUserLimit"
    ours.send(*"abcdefghij")
    for clock[0] in range(1000, 1100):
        ours.poll()
    assert cluster.asked == 1 + 5  # at 0, 5, 15, 35 and 75 s, once for all ten
    assert len(packs_in(tmp_path)) == 1  # of the first
    cluster.refusal = None
    cluster.finishes()
    ours.poll()
    assert len(ours.told("sent")) == 1 + 10


BATCH = "Batch job submission failed: "
POLICY = "; Job violates accounting/QOS policy"


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (f"{BATCH}Zero Bytes were transmitted or received", "later"),
        (f"{BATCH}Socket timed out on send/recv operation", "later"),
        ("Unable to contact slurm controller (connect failure)", "later"),
        ("Slurm temporarily unable to accept job, sleeping and retrying; Socket timed", "later"),
        (f"QOSMaxSubmitJobPerUserLimit{POLICY} (job submit limit)", "later"),
        (f"{BATCH}I/O error writing script/environment to file", "unknown"),
        ("Invalid authentication credential", "unknown"),
        ("'east' can't be reached now, or it is an invalid entry for --cluster.", "unknown"),
        (f"QOSMaxWallDurationPerJobLimit{POLICY}", "refused"),
        (f"{BATCH}Invalid qos specification", "refused"),
        (f"{BATCH}Requested node configuration is not available", "refused"),
        ("unrecognized option '--frobnicate'", "refused"),
    ],
)
def test_what_sbatch_says_is_final_only_where_its_words_are_known(said, kind):
    assert kind_of(said) == kind


def test_submission_waits_for_disk_space_and_orphans_run_nothing(run, cluster, clock):
    ours, send = run(), cluster.send

    def broken(*arguments, **named):
        send(*arguments, **named)
        raise NO_SPACE

    cluster.send = broken
    ours.send("a")
    assert not cluster.folders["100"].exists()
    assert "No space left on device; 1 jobs wait" in ours.told("say")[0][1]
    cluster.send = send
    clock[0] += 5
    ours.poll()
    assert cluster.cancelled == ["100"]
    assert ours.told("sent", "failed") == [("sent", "a", "101")]


def test_nothing_is_sent_whose_results_could_not_be_written(run, cluster, clock, monkeypatch):
    def full(*_, **__):
        raise NO_SPACE

    with monkeypatch.context() as patch:
        patch.setattr("tempfile.TemporaryFile", full)
        ours = run("a")
        for _ in range(5):
            clock[0] += 400
            ours.poll()
        assert cluster.asked == 0
    clock[0] += 400
    ours.poll()
    assert ours.told("sent", "failed") == [("sent", "a", "100")]


def test_points_to_be_repeated_wait_for_the_end_of_their_pack(run, cluster):
    ours = run("a", "b", "c", pack=3)
    for number, name in enumerate("abc"):
        ours.told()
        cluster.finishes(number, code=1)
        ours.poll()
        ours.send(name)  # as Snakemake does at once
    ours.poll()
    assert ours.told("sent") == [("sent", name, "101") for name in "abc"]


def test_no_more_are_in_flight_than_allowed_and_the_rest_follows(run, cluster):
    ours = run("a", "b", "c", pack=2, max_allocations=1)
    assert [event[1] for event in ours.told("sent")] == ["a", "b"]
    cluster.finishes(0)
    ours.poll()
    assert ours.told("sent") == []
    cluster.finishes(1)
    ours.poll()
    assert ours.told("sent") == [("sent", "c", "101")]


def test_a_ctrl_c_just_after_a_job_was_sent_cancels_it(run, cluster, monkeypatch):
    ours = run()

    def interrupted(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ours.listener, "say", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ours.send("a", "b")
    assert ours.cancel() == 1
    assert cluster.cancelled == ["100"]


def test_a_refusal_for_good_is_not_asked_again(run, cluster):
    cluster.refusal = "invalid partition specified: x"
    ours = run("b")
    cluster.refusal = None
    ours.send("b")
    said = "the scheduler refused it: invalid partition specified: x"
    assert ours.told("sent", "failed") == [("failed", "b", said)] * 2
