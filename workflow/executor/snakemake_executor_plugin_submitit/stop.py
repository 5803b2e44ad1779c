"""End for good what makes given files: a live Snakemake, and what a dead one has sent.

    python -m snakemake_executor_plugin_submitit.stop results/one/

in the directory where Snakemake was started. Exit code 0: nothing of it runs any more. 1: a
Snakemake on another host or of another user makes these files, or has left jobs, or the scheduler
did not answer; the output says which. 2: there is no such scheduler. From shared allocations only
those with a job that makes such a file are ended.
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

from .ownership import CLAIMS, Claim, claims_in, how_to_stop, lives, may_act_for, user_name
from .records import Records
from .schedulers import SCHEDULERS, Scheduler
from .settings import ExecutorSettings

HEED_S = 15.0  # for an interrupted Snakemake to cancel, finish and write
PATIENCE_S = 120.0  # for one that ignores that to see its allocations end


def stop(
    records: Records, scheduler: Scheduler, prefix: str, say: Callable[[str], None] = print
) -> bool:
    """Interrupt the owners on this host, cancel what is left in flight; whether all has ended.

    `prefix` begins the files that are no longer to be made, as Snakemake names them. `say` is told
    at once what is ended, what is waited for, and what could not be ended.
    """
    claims = {
        path: claim
        for path, claim in claims_in(CLAIMS)
        if any(name.startswith(prefix) for name in claim.outputs)
    }
    live = [owner for path, owner in claims.items() if lives(path, owner, say)]
    here = [owner for owner in live if owner.is_here]
    heeding = [owner for owner in here if _interrupt(owner, say)]
    _wait_for(heeding, HEED_S)
    elsewhere = [owner for owner in live if owner not in here]
    for owner in elsewhere:
        say(f"{owner} makes these files: {how_to_stop(owner)} there")
    if elsewhere:  # they would send again what is cancelled here
        return False
    answered = _cancel(records, scheduler, prefix, say)
    if running := list(filter(Claim.runs, here)):
        say(f"waiting for {', '.join(map(str, running))} to end")
        _wait_for(running, PATIENCE_S)
    left = list(filter(Claim.runs, running))
    for owner in left:
        say(f"{owner} has not ended yet")
    jobs_left = False
    for uid in {owner.uid for owner in claims.values() if not may_act_for(owner.uid)}:
        jobs = scheduler.left_in(Path.cwd(), uid)
        answered &= jobs is not None
        jobs_left |= bool(jobs)
        if jobs:
            say(
                f"job {', '.join(jobs)}: sent from here by {user_name(uid)}, whose snakemake "
                f"is dead: only {user_name(uid)} or an administrator can cancel it"
            )
    if not answered:
        say("the scheduler does not answer: give the same command again")
    ended = answered and not jobs_left and not left
    for path in claims if ended else ():
        with contextlib.suppress(PermissionError):  # of another user, in a sticky folder
            path.unlink(missing_ok=True)
    return ended


def _cancel(
    records: Records, scheduler: Scheduler, prefix: str, say: Callable[[str], None]
) -> bool:
    """Cancel what makes such files, and what has nothing to run; whether there was an answer."""
    listed = scheduler.listed()
    if listed is None:  # perhaps there is no scheduler here
        return not records.batches()
    live = [job for job in listed if job.state.live]
    doomed = [job for job in live if records.makes(job, prefix) or records.is_orphan(job)]
    if not doomed:
        return True
    say(f"cancelling {len(doomed)} allocations: {', '.join(job.id for job in doomed)}")
    for job in doomed:
        batch = records.root / job.batch
        records.withdraw(batch, records.unfinished(batch))
    return scheduler.cancel([job.id for job in doomed])


def _interrupt(owner: Claim, say: Callable[[str], None]) -> bool:
    """Interrupt an owner, or tell one that ignores it to send no more; whether it heeds."""
    heeds = not _ignores_interrupts(owner.pid)
    say(f"interrupting {owner}" if heeds else f"telling {owner} to send nothing more")
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.kill(owner.pid, signal.SIGINT if heeds else signal.SIGTERM)
    return heeds


def _ignores_interrupts(pid: int) -> bool:
    """Whether a process of this host ignores SIGINT."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it has just ended
        return False
    ignored = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn"))
    return bool(int(ignored, 16) >> (signal.SIGINT - 1) & 1)


def _wait_for(owners: Sequence[Claim], limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while any(map(Claim.runs, owners)) and time.monotonic() < end:
        time.sleep(0.2)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command described above."""
    parser = argparse.ArgumentParser(prog="snakemake_executor_plugin_submitit.stop")
    parser.add_argument("prefix", help="of the files that are no longer to be made")
    parser.add_argument("--cluster", default=ExecutorSettings().cluster)
    options = parser.parse_args(words)
    if options.cluster not in SCHEDULERS:
        allowed = ", ".join(sorted(SCHEDULERS))
        print(f"{options.cluster}: allowed: {allowed}", file=sys.stderr)  # noqa: T201 (a command)
        return 2
    scheduler = SCHEDULERS[options.cluster](ExecutorSettings())
    ended = stop(Records(), scheduler, options.prefix, partial(print, flush=True))
    return 0 if ended else 1


if __name__ == "__main__":
    sys.exit(main())
