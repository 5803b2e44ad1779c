"""Hosts on which nothing can run."""

from snakemake_executor_plugin_submitit.pack import write_json
from snakemake_executor_plugin_submitit.schedulers.slurm.words import state_of

from tests.executor.conftest import wanted_jobs


def test_a_host_that_fails_twice_is_excluded_and_named(run, cluster, tmp_path):
    dispatcher, listener = run()
    dispatcher.submit(wanted_jobs(tmp_path, "a", "b"))
    for job in ("100", "101"):
        why = "measure a found that nothing can run there"
        write_json(cluster.folders[job] / "started.json", {})
        write_json(cluster.folders[job] / "unusable.json", {"host": "n7", "why": why})
        cluster.known[job] = state_of("FAILED")
        dispatcher.poll()

    assert [event[1] for event in listener.take("failed")] == []
    assert cluster.requests["102"] == {"nodes": 1}  # after the first failure
    assert cluster.requests["103"] == {"nodes": 1, "exclude": "n7"}
    first, last = dispatcher.report()
    assert first == f"n7 was excluded after 2 failures of its own: {why}"
    assert last == "submitit: 4 allocations, 3 squeue calls"
