"""A second run and what the first one has sent; removal of old records."""

import os
import time

import pytest
from snakemake_executor_plugin_submitit.records import Records, digest_of

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


def test_a_batch_is_removed_once_all_of_it_succeeded_and_snakemake_knows(run, cluster):
    ours = run("a", "b", pack=2)
    cluster.shows("COMPLETING")

    def is_kept():
        ours.tidy()
        return cluster.folders["100"].exists()

    cluster.finishes(0)
    assert is_kept()
    cluster.finishes(1)
    assert is_kept()  # Snakemake has not recorded that they are done
    for name in "ab":
        ours.recorded(wanted_job(name).key)
    assert is_kept()  # its worker may still write
    cluster.shows("COMPLETED")
    assert not is_kept()


@pytest.mark.parametrize("state", ["PENDING", "CANCELLED"])
def test_what_failed_is_removed_when_it_is_old_unless_it_may_yet_run(run, cluster, state):
    ours = run("a")
    batch = cluster.folders["100"]
    cluster.shows(state)
    ours.tidy()
    assert batch.exists()
    long_ago = time.time() - 30 * 86400 - 1
    for path in [*batch.rglob("*"), batch]:
        os.utime(path, (long_ago, long_ago))
    ours.tidy()
    assert batch.exists() == (state == "PENDING")


def test_what_a_user_keeps_beside_the_records_is_never_removed(tmp_path):
    records = Records(tmp_path)
    data = tmp_path / "data" / "tokens.bin"
    data.parent.mkdir()
    data.touch()
    os.utime(data.parent, (0, 0))
    being_made = records.new_batch()
    being_made.mkdir()
    records.tidy([])
    assert data.exists()
    assert being_made.exists()
