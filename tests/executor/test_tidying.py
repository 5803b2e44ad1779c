"""Removal of old records."""

import os
import time
from pathlib import Path

import pytest
from snakemake_executor_plugin_submitit.records import Records
from snakemake_executor_plugin_submitit.schedulers.slurm.words import state_of

from tests.executor.conftest import wanted_jobs


def test_a_batch_is_removed_once_all_of_it_succeeded_and_snakemake_knows(run, cluster, tmp_path):
    dispatcher, _ = run(pack=2)
    jobs = wanted_jobs(tmp_path, "a", "b")
    dispatcher.submit(jobs)
    batch: Path = cluster.folders["100"]
    cluster.known["100"] = state_of("COMPLETING")

    def is_kept() -> bool:
        dispatcher.tidy()
        return batch.exists()

    cluster.finish("100", 0)
    assert is_kept()
    cluster.finish("100", 1)
    assert is_kept()  # Snakemake has not recorded that they are done
    for job in jobs:
        dispatcher.recorded(job.key)
    assert is_kept()  # its worker may still write
    cluster.known["100"] = state_of("COMPLETED")
    assert not is_kept()


@pytest.mark.parametrize("state", ["PENDING", "CANCELLED"])
def test_what_failed_is_removed_when_it_is_old_unless_it_may_yet_run(run, cluster, tmp_path, state):
    dispatcher, _ = run()
    dispatcher.submit(wanted_jobs(tmp_path, "a"))
    batch = cluster.folders["100"]
    cluster.known["100"] = state_of(state)
    dispatcher.tidy()
    assert batch.exists()
    long_ago = time.time() - 30 * 86400 - 1
    for path in [*batch.rglob("*"), batch]:
        os.utime(path, (long_ago, long_ago))

    dispatcher.tidy()

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
