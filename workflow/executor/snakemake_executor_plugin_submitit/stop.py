"""End for good what makes given files: a live Snakemake, and what a dead one has sent.

    python -m snakemake_executor_plugin_submitit.stop .snakemake/submitit results/one/

Exit code 0: nothing of it runs any more. 1: a Snakemake on another host makes these files, or the
scheduler did not answer; the output says which. Of shared allocations only those with a job that
makes such a file are ended.
"""

import argparse
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .ledger import Ledger
from .ownership import live_owners
from .schedulers import SCHEDULERS, Scheduler
from .settings import ExecutorSettings

PATIENCE_S = 120.0  # for an interrupted Snakemake to cancel, settle and write


def stop(ledger: Ledger, scheduler: Scheduler, prefix: str) -> tuple[list[str], bool]:
    """Interrupt the owners on this host, then cancel what is left in flight.

    Args:
        ledger: of the executor's folder.
        scheduler: where its allocations were sent.
        prefix: of the files that are no longer to be made, as Snakemake names them.

    Returns:
        A sentence for each thing that was ended or could not be, and whether nothing of it runs any
        more.
    """
    sentences, elsewhere = _interrupt(ledger.root / "index" / "owners", prefix)
    if elsewhere:  # that one would send again what is cancelled here
        return sentences, False
    sent = {
        folder: identity
        for batch in ledger.batches()
        for folder in batch.iterdir()
        if folder.is_dir() and ledger.has_outputs_under(folder, prefix) and ledger.unsettled(folder)
        if (identity := ledger.submitted(folder)) is not None
    }
    states = scheduler.states(list(sent.values())) if sent else {}
    if states is None:
        return [*sentences, "the scheduler does not answer: give the same command again"], False
    live = [
        identity
        for identity in sent.values()
        if (state := states.get(str(identity["job"]))) is not None and state.live
    ]
    if live:
        scheduler.cancel(live)
        jobs = ", ".join(str(identity["job"]) for identity in live)
        sentences.append(f"cancelled {len(live)} allocations that nobody watched: {jobs}")
    return sentences, True


def _interrupt(owners: Path, prefix: str) -> tuple[list[str], bool]:
    """Sentences about the owners that were interrupted, and whether one lives on another host."""
    sentences, elsewhere = [], False
    for path, owner in live_owners(owners, prefix):
        who = f"snakemake (pid {owner['pid']} on {owner['host']})"
        if owner["host"] != socket.gethostname():
            sentences.append(f"{who} makes these files: stop it there")
            elsewhere = True
            continue
        os.kill(owner["pid"], signal.SIGINT)
        end = time.monotonic() + PATIENCE_S
        while path.exists() and time.monotonic() < end:
            time.sleep(0.2)
        ended = not path.exists()
        sentences.append(f"{who} was interrupted" + ("" if ended else " and has not ended yet"))
    return sentences, elsewhere


def main(words: Sequence[str] | None = None) -> int:
    """Run the command described above."""
    parser = argparse.ArgumentParser(prog="snakemake_executor_plugin_submitit.stop")
    parser.add_argument("folder", type=Path, help="the executor's records")
    parser.add_argument("prefix", help="of the files that are no longer to be made")
    parser.add_argument("--cluster", default=ExecutorSettings().cluster, choices=sorted(SCHEDULERS))
    options = parser.parse_args(words)
    scheduler = SCHEDULERS[options.cluster](ExecutorSettings())
    sentences, ended = stop(Ledger(options.folder.absolute()), scheduler, options.prefix)
    for sentence in sentences:
        print(sentence)  # noqa: T201 (a command)
    return 0 if ended else 1


if __name__ == "__main__":
    sys.exit(main())
