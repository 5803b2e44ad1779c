"""End for good what makes given files: a live Snakemake, and what a dead one has sent.

    python -m snakemake_executor_plugin_submitit.stop .snakemake/submitit results/one/

Exit code 0: nothing of it runs any more. 1: a Snakemake on another host makes these files, or the
scheduler did not answer; the output says which. Of shared allocations only those with a job that
makes such a file are ended.
"""

import argparse
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .ledger import Ledger
from .ownership import is_running, live_owners
from .schedulers import SCHEDULERS, Scheduler
from .settings import ExecutorSettings

HEED_S = 15.0  # for an interrupted Snakemake to cancel, settle and write
PATIENCE_S = 120.0  # for one that ignores that to see its allocations end


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
    owners = [owner for _, owner in live_owners(ledger.root / "index" / "owners", prefix)]
    here = [owner for owner in owners if owner["host"] == socket.gethostname()]
    _interrupt(here)
    if elsewhere := [owner for owner in owners if owner not in here]:
        # they would send again what is cancelled here
        return [f"{_name(owner)} makes these files: stop it there" for owner in elsewhere], False
    cancelled, answered = _cancel(ledger, scheduler, prefix)
    if cancelled:
        _wait_for(here, PATIENCE_S)
    sentences = [
        f"{_name(owner)} was interrupted" + (" and has not ended yet" if is_running(owner) else "")
        for owner in here
    ]
    if cancelled:
        jobs = ", ".join(cancelled)
        unwatched = "" if here else " that nobody watched"
        sentences.append(f"cancelled {len(cancelled)} allocations{unwatched}: {jobs}")
    if not answered:
        sentences.append("the scheduler does not answer: give the same command again")
    return sentences, answered and not any(map(is_running, here))


def _cancel(ledger: Ledger, scheduler: Scheduler, prefix: str) -> tuple[list[str], bool]:
    """Cancel allocations that make such files; the ids of live ones, and whether it answered."""
    sent: list[Mapping[str, Any]] = []
    for batch in ledger.batches():
        folders = [
            folder
            for folder in batch.iterdir()
            if folder.is_dir()
            and ledger.has_outputs_under(folder, prefix)
            and ledger.unsettled(folder)
        ]
        identities = [ledger.submitted(folder) for folder in folders]
        sent += [identity for identity in identities if identity is not None]
        if None in identities:  # its Snakemake died before it could write down the answer
            found = scheduler.find(batch.name)
            if found is None:
                return [], False
            sent += found
    states = scheduler.states(sent) if sent else {}
    if states is None:
        return [], False
    alive = {
        job: identity
        for identity in sent
        if (state := states.get(job := str(identity["job"]))) is not None and state.live
    }
    if not alive:
        return [], True
    took_it = scheduler.cancel(list(alive.values()))
    return (list(alive), True) if took_it else ([], False)


def _name(owner: Mapping[str, Any]) -> str:
    return f"snakemake (pid {owner['pid']} on {owner['host']})"


def _interrupt(owners: Sequence[Mapping[str, Any]]) -> None:
    """Interrupt these; one that ignores it, as a script's background job does, sends no more."""
    for number in (signal.SIGINT, signal.SIGTERM):
        for owner in filter(is_running, owners):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(owner["pid"], number)
        _wait_for(owners, HEED_S if number == signal.SIGINT else 1.0)


def _wait_for(owners: Sequence[Mapping[str, Any]], limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while any(map(is_running, owners)) and time.monotonic() < end:
        time.sleep(0.2)


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
