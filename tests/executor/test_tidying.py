"""What is thrown away, and when."""

import os
import time
from pathlib import Path

import pytest
from snakemake_executor_plugin_submitit.ledger import Ledger, key_of, tidy
from snakemake_executor_plugin_submitit.schedulers.slurm.words import state_of

from tests.executor.conftest import wanted_jobs


def test_a_batch_is_thrown_away_only_when_all_of_it_succeeded_and_was_seen(run, cluster, tmp_path):
    dispatcher, _ = run(pack=2)
    ledger = Ledger(tmp_path / "ledger")
    dispatcher.submit(wanted_jobs(tmp_path, "a", "b"))
    batch: Path = cluster.folders["100"].parent
    cluster.settle("100", 0)
    assert not ledger.tidy(batch)
    cluster.settle("100", 1)
    assert not ledger.tidy(batch)  # its worker may still write
    (batch / "100_0_result.pkl").touch()
    assert not ledger.tidy(batch)  # Snakemake has not written down that they are done
    for name in "ab":
        ledger.forget(key_of("r", {"p": name}, []))

    assert ledger.tidy(batch)
    assert not batch.exists()
    assert not ledger.tidy(batch)  # another run of this folder was faster


@pytest.mark.parametrize("state", ["PENDING", "CANCELLED"])
def test_what_failed_is_thrown_away_when_it_is_old_unless_it_may_yet_run(
    run, cluster, tmp_path, state
):
    dispatcher, _ = run()
    ledger = Ledger(tmp_path / "ledger")
    dispatcher.submit(wanted_jobs(tmp_path, "a"))
    batch = cluster.folders["100"].parent
    cluster.known["100"] = state_of(state)
    tidy(ledger, cluster, keep_days=3)
    assert batch.exists()
    long_ago = time.time() - 3 * 86400 - 1
    for path in [*batch.rglob("*"), batch]:
        os.utime(path, (long_ago, long_ago))

    tidy(ledger, cluster, keep_days=3)

    assert batch.exists() == (state == "PENDING")


def test_what_a_user_keeps_beside_the_records_is_never_thrown_away(cluster, tmp_path):
    ledger = Ledger(tmp_path)
    data = tmp_path / "data" / "tokens.bin"
    data.parent.mkdir()
    data.touch()
    os.utime(data.parent, (0, 0))
    being_made = ledger.open_batch()

    tidy(ledger, cluster, keep_days=3)

    assert data.exists()
    assert being_made.exists()
