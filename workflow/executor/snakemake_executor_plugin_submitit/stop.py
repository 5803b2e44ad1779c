"""End for good what makes given files: a live Snakemake, and what a dead one has sent.

    python -m snakemake_executor_plugin_submitit.stop .snakemake/submitit results/one/

in the directory where Snakemake was started. Records in other folders are found by the claims of
who has used them. Exit code 0: all of it has ended. 1: a Snakemake on another host or of another
user makes these files, or has left jobs, or the scheduler did not answer; the output says which. 2:
there is no such scheduler. From shared allocations only those with a job that makes such a file are
ended.
"""

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from .ledger import Ledger
from .ownership import CLAIMS, RECORDS, Claim, claims_of, how_to_stop, may_act_for, user_name
from .schedulers import SCHEDULERS, Scheduler
from .settings import ExecutorSettings

HEED_S = 15.0  # for an interrupted Snakemake to cancel, settle and write
PATIENCE_S = 120.0  # for one that ignores that to see its allocations end


def stop(
    folder: Path, scheduler: Scheduler, prefix: str, say: Callable[[str], None] = print
) -> bool:
    """Interrupt the owners on this host, then cancel what is left in flight.

    Args:
        folder: the executor's records; others are found by claims.
        scheduler: where its allocations were sent.
        prefix: of the files that are no longer to be made, as Snakemake names them.
        say: is told at once what is ended, what is waited for, and what could not be ended.

    Returns:
        Whether all of it has ended.
    """
    claims = claims_of(CLAIMS, prefix)
    live = [owner for _, owner, lives in claims if lives]
    here = [owner for owner in live if owner.is_here]
    for owner in here:
        say(f"interrupting {owner}")
    _interrupt(here)
    elsewhere = [owner for owner in live if owner not in here]
    for owner in elsewhere:
        say(f"{owner} makes these files: {how_to_stop(owner)} there")
    if elsewhere:  # they would send again what is cancelled here
        return False
    mine = [owner for _, owner, _ in claims if may_act_for(owner.uid)]
    folders = {folder.absolute()}
    folders |= {Path(owner.records) for owner in mine}
    answered = _cancel([*map(Ledger, sorted(folders))], scheduler, prefix, say)
    if running := [owner for owner in here if owner.runs()]:
        say(f"waiting for {', '.join(map(str, running))} to end")
        _wait_for(running, PATIENCE_S)
    for owner in filter(Claim.runs, running):
        say(f"{owner} has not ended yet")
    theirs = {owner.uid for _, owner, _ in claims if owner not in mine}
    left = {uid: scheduler.left_in(Path.cwd(), uid) for uid in sorted(theirs)}
    for uid, jobs in left.items():
        answered &= jobs is not None
        if jobs:
            say(
                f"job {', '.join(jobs)}: sent from here by {user_name(uid)}, whose snakemake "
                f"is dead: only {user_name(uid)} or an administrator can cancel it"
            )
    if not answered:
        say("the scheduler does not answer: give the same command again")
    ended = answered and not any(left.values()) and not any(map(Claim.runs, here))
    if ended:
        for path, _, _ in claims:
            with contextlib.suppress(PermissionError):  # of another user, in a sticky folder
                path.unlink(missing_ok=True)
    return ended


def _cancel(
    ledgers: Sequence[Ledger], scheduler: Scheduler, prefix: str, say: Callable[[str], None]
) -> bool:
    """Cancel what makes such files, and what has nothing to run; whether there was an answer."""
    listed = scheduler.listed()
    if listed is None:  # perhaps there is no scheduler here
        return not any(ledger.batches() for ledger in ledgers)
    live = [job for job in listed if job.state.live]
    doomed = [
        job
        for job in live
        if any(ledger.makes(job, prefix) or ledger.leftovers([job], ()) for ledger in ledgers)
    ]
    if not doomed:
        return True
    say(f"cancelling {len(doomed)} allocations: {', '.join(job.id.job for job in doomed)}")
    for ledger in ledgers:
        for job in doomed:
            ledger.withdraw_all(job)
    return scheduler.cancel([job.id for job in doomed])


def _interrupt(owners: Sequence[Claim]) -> None:
    """Interrupt these; one that ignores it, as a script's background job does, sends no more."""
    for number in (signal.SIGINT, signal.SIGTERM):
        for owner in filter(Claim.runs, owners):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(owner.pid, number)
        _wait_for(owners, HEED_S if number == signal.SIGINT else 1.0)


def _wait_for(owners: Sequence[Claim], limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while any(map(Claim.runs, owners)) and time.monotonic() < end:
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
    ended = stop(options.folder, scheduler, options.prefix, partial(print, flush=True))
    return 0 if ended else 1


if __name__ == "__main__":
    sys.exit(main())
