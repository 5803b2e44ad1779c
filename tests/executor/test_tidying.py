"""Removal of old records."""

import os
import time

import pytest
from snakemake_executor_plugin_submitit.records import Records

from tests.executor.conftest import wanted_job


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
