"""End for good what makes given files: a live Snakemake, and what a dead one has sent.

    python -m snakemake_executor_plugin_submitit.stop .snakemake/submitit results/one/

in the directory where Snakemake was started. Records in other folders are found by the claims of
who has used them. Exit code 0: nothing of it runs any more. 1: a Snakemake on another host or of
another user makes these files, or has left jobs, or the scheduler did not answer; the output says
which. 2: there is no such scheduler. Of shared allocations only those with a job that makes such a
file are ended.
"""

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .ledger import Ledger
from .ownership import (
    CLAIMS,
    RECORDS,
    can_be_seen,
    claims_of,
    is_running,
    may_act_for,
    name_of,
    owner_uid,
    user_name,
)
from .schedulers import SCHEDULERS, Scheduler
from .settings import ExecutorSettings

HEED_S = 15.0  # for an interrupted Snakemake to cancel, settle and write
PATIENCE_S = 120.0  # for one that ignores that to see its allocations end


def stop(folder: Path, scheduler: Scheduler, prefix: str) -> tuple[list[str], bool]:
    """Interrupt the owners on this host, then cancel what is left in flight.

    Args:
        folder: the executor's records; others are found by claims.
        scheduler: where its allocations were sent.
        prefix: of the files that are no longer to be made, as Snakemake names them.

    Returns:
        A sentence for each thing that was ended or could not be, and whether nothing of it runs any
        more.
    """
    claims = claims_of(CLAIMS, prefix)
    live = [owner for _, owner, lives in claims if lives]
    here = [owner for owner in live if can_be_seen(owner)]
    _interrupt(here)
    if elsewhere := [owner for owner in live if owner not in here]:
        # they would send again what is cancelled here
        told = [f"{name_of(owner)} makes these files: {_who_can(owner)}" for owner in elsewhere]
        return told, False
    mine = [owner for _, owner, _ in claims if may_act_for(owner_uid(owner))]
    folders = {folder.absolute()}
    folders |= {Path(owner["records"]) for owner in mine if "records" in owner}
    cancelled: list[str] = []
    answered = True
    for records in sorted(filter(Path.is_dir, folders)):
        found, answer = _cancel(Ledger(records), scheduler, prefix)
        cancelled += found
        answered &= answer
    if cancelled:
        _wait_for(here, PATIENCE_S)
    sentences = [
        f"{name_of(owner)} was interrupted"
        + (" and has not ended yet" if is_running(owner) else "")
        for owner in here
    ]
    if cancelled:
        jobs = ", ".join(cancelled)
        unwatched = "" if here else " that nobody watched"
        sentences.append(f"cancelled {len(cancelled)} allocations{unwatched}: {jobs}")
    theirs = {owner_uid(owner) for _, owner, _ in claims if owner not in mine}
    left = {uid: scheduler.left_in(Path.cwd(), uid) for uid in sorted(theirs)}
    for uid, jobs_left in left.items():
        answered &= jobs_left is not None
        if jobs_left:
            sentences.append(
                f"job {', '.join(jobs_left)}: sent from here by {user_name(uid)}, whose snakemake "
                f"is dead: only {user_name(uid)} or an administrator can cancel it"
            )
    if not answered:
        sentences.append("the scheduler does not answer: give the same command again")
    ended = answered and not any(left.values()) and not any(map(is_running, here))
    if ended:
        for path, _, _ in claims:
            with contextlib.suppress(PermissionError):  # of another user, in a sticky folder
                path.unlink(missing_ok=True)
    return sentences, ended


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


def _who_can(owner: Mapping[str, Any]) -> str:
    uid = owner_uid(owner)
    if may_act_for(uid):
        return "stop it there"
    return f"only {user_name(uid)} or an administrator can stop it"


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
    parser.add_argument("folder", type=Path, help=f"the executor's records, such as {RECORDS}")
    parser.add_argument("prefix", help="of the files that are no longer to be made")
    parser.add_argument("--cluster", default=ExecutorSettings().cluster)
    options = parser.parse_args(words)
    if options.cluster not in SCHEDULERS:
        allowed = ", ".join(sorted(SCHEDULERS))
        print(f"{options.cluster}: allowed: {allowed}", file=sys.stderr)  # noqa: T201 (a command)
        return 2
    scheduler = SCHEDULERS[options.cluster](ExecutorSettings())
    sentences, ended = stop(options.folder, scheduler, options.prefix)
    for sentence in sentences:
        print(sentence)  # noqa: T201 (a command)
    return 0 if ended else 1


if __name__ == "__main__":
    sys.exit(main())
