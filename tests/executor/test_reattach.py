"""A second run, and what the first one has sent."""

import time

from snakemake_executor_plugin_submitit.records import digest_of

from tests.executor.conftest import wanted_job


def test_a_second_run_takes_up_what_lives_and_sends_what_died(run, cluster, tmp_path):
    names = ("lives", "died", "done", "failed")
    run(*names)
    cluster.shows("CANCELLED", job="101")
    cluster.finishes(job="102")
    (tmp_path / "done").touch()
    cluster.finishes(code=9, job="103")
    assert sorted(run(*names).told("sent")) == [
        ("sent", "died", "104"),
        ("sent", "done", "102"),
        ("sent", "failed", "105"),
        ("sent", "lives", "100"),
    ]


def test_a_job_taken_up_and_found_dead_is_sent_again(run, cluster):
    run("a")
    second = run("a")
    cluster.shows("NODE_FAIL")
    second.poll()
    assert second.told("sent", "failed") == [("sent", "a", "100"), ("sent", "a", "101")]


def test_a_job_whose_end_snakemake_has_recorded_is_sent_anew(run, cluster, tmp_path):
    first = run("a")
    cluster.finishes()
    (tmp_path / "a").touch()
    first.poll()
    first.recorded(wanted_job("a").key)
    assert run("a").told("sent") == [("sent", "a", "101")]


def test_what_waits_for_other_resources_than_it_needs_now_is_sent_anew(run, cluster):
    first, second = run(pack=2), run(pack=2)
    first.send("a", "b", slurm_partition="old")
    first.send("runs", slurm_partition="old")
    cluster.shows("RUNNING", job="101")
    second.send("a", "b", "runs", slurm_partition="new")
    assert sorted(second.told("sent")) == [
        ("sent", "a", "102"),
        ("sent", "b", "102"),
        ("sent", "runs", "101"),
    ]
    assert cluster.cancelled == ["100"]
    assert cluster.requests["102"]["partition"] == "new"


def test_a_waiting_job_is_taken_up_though_the_excluded_hosts_changed(run):
    site = {"slurm_extra": "--exclude=broken"}
    run().send("a", **site)
    second = run()
    second.send("a", **site, slurm_exclude="n1,n2")
    assert second.told("sent") == [("sent", "a", "100")]


def test_a_run_starts_with_an_answer_so_that_nothing_is_sent_twice(run, cluster, monkeypatch):
    run("a")
    cluster.answers = False
    monkeypatch.setattr(time, "sleep", lambda _: setattr(cluster, "answers", True))
    assert run("a").told("sent") == [("sent", "a", "100")]


def test_cancelling_spares_a_pack_in_which_others_still_wait_for_points(run, cluster):
    first = run("mine", "theirs", pack=2)
    assert run("mine", pack=2).cancel() == 0
    assert cluster.cancelled == []
    assert (cluster.folders["100"] / "0.withdrawn").exists()
    assert first.cancel() == 1
    assert cluster.cancelled == ["100"]


def test_a_running_job_is_taken_up_though_the_excluded_hosts_changed():
    before = digest_of("measure p.json --excluded='' > log", "")
    assert digest_of("measure p.json --excluded=n1,n2 > log", "n1,n2") == before
    assert digest_of("measure q.json --excluded=n1,n2 > log", "n1,n2") != before
