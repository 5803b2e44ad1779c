"""A second run, and what the first one has sent."""

import time

from snakemake_executor_plugin_submitit.records import digest_of
from snakemake_executor_plugin_submitit.schedulers.slurm.words import state_of

from tests.executor.conftest import wanted_jobs


def test_a_second_run_takes_up_what_lives_and_sends_what_died(run, cluster, tmp_path):
    first, _ = run()
    first.submit(wanted_jobs(tmp_path, "lives", "died", "done", "failed"))
    cluster.known["101"] = state_of("CANCELLED")
    cluster.finish("102", 0)
    (tmp_path / "done").touch()
    cluster.finish("103", 0, code=9)

    second, listener = run()
    second.submit(wanted_jobs(tmp_path, "lives", "died", "done", "failed"))

    assert sorted(listener.take("sent")) == [
        ("sent", "died", "104"),
        ("sent", "done", "102"),
        ("sent", "failed", "105"),
        ("sent", "lives", "100"),
    ]


def test_a_job_taken_up_and_found_dead_is_sent_again(run, cluster, tmp_path):
    first, _ = run()
    first.submit(wanted_jobs(tmp_path, "a"))
    second, listener = run()
    second.submit(wanted_jobs(tmp_path, "a"))
    cluster.known["100"] = state_of("NODE_FAIL")

    second.poll()

    assert listener.take("sent", "failed") == [("sent", "a", "100"), ("sent", "a", "101")]


def test_a_job_whose_end_snakemake_has_recorded_is_sent_anew(run, cluster, tmp_path):
    first, _ = run()
    (job,) = wanted_jobs(tmp_path, "a")
    first.submit([job])
    cluster.finish("100", 0)
    (tmp_path / "a").touch()
    first.poll()
    first.recorded(job.key)
    second, listener = run()
    second.submit(wanted_jobs(tmp_path, "a"))

    assert listener.take("sent") == [("sent", "a", "101")]


def test_what_waits_for_other_resources_than_it_needs_now_is_sent_anew(run, cluster, tmp_path):
    first, _ = run(pack=2)
    first.submit(wanted_jobs(tmp_path, "a", "b", slurm_partition="old"))
    first.submit(wanted_jobs(tmp_path, "runs", slurm_partition="old"))
    cluster.known["101"] = state_of("RUNNING")

    second, listener = run(pack=2)
    second.submit(wanted_jobs(tmp_path, "a", "b", "runs", slurm_partition="new"))

    assert sorted(listener.take("sent")) == [
        ("sent", "a", "102"),
        ("sent", "b", "102"),
        ("sent", "runs", "101"),
    ]
    assert cluster.cancelled == ["100"]
    assert cluster.requests["102"]["partition"] == "new"


def test_a_waiting_job_is_taken_up_though_the_excluded_hosts_changed(run, cluster, tmp_path):
    site = {"slurm_extra": "--exclude=broken"}
    first, _ = run()
    first.submit(wanted_jobs(tmp_path, "a", **site))
    second, listener = run()
    second.submit(wanted_jobs(tmp_path, "a", **site, slurm_exclude="n1,n2"))

    assert listener.take("sent") == [("sent", "a", "100")]


def test_a_run_starts_with_an_answer_so_that_nothing_is_sent_twice(
    run, cluster, tmp_path, monkeypatch
):
    first, _ = run()
    first.submit(wanted_jobs(tmp_path, "a"))
    cluster.answers = False
    second, listener = run()
    monkeypatch.setattr(time, "sleep", lambda _: setattr(cluster, "answers", True))

    second.submit(wanted_jobs(tmp_path, "a"))

    assert listener.take("sent") == [("sent", "a", "100")]


def test_cancelling_spares_a_pack_in_which_others_still_wait_for_points(run, cluster, tmp_path):
    first, _ = run(pack=2)
    first.submit(wanted_jobs(tmp_path, "mine", "theirs"))
    second, _ = run(pack=2)
    second.submit(wanted_jobs(tmp_path, "mine"))

    assert second.cancel() == 0
    assert cluster.cancelled == []
    assert (cluster.folders["100"] / "0.withdrawn").exists()
    assert first.cancel() == 1
    assert cluster.cancelled == ["100"]


def test_a_running_job_is_taken_up_though_the_excluded_hosts_changed():
    before = digest_of("measure p.json --excluded='' > log", "")

    assert digest_of("measure p.json --excluded=n1,n2 > log", "n1,n2") == before
    assert digest_of("measure q.json --excluded=n1,n2 > log", "n1,n2") != before
