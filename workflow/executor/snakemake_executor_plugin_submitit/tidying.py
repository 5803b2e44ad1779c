"""Remove old records and logs."""

from .ledger import Ledger
from .schedulers import Scheduler

_DAY_S = 86400.0


def tidy(ledger: Ledger, scheduler: Scheduler, keep_days: float) -> None:
    """Remove batches in which every job succeeded, and old ones unless they may still run.

    Failures are kept for `keep_days` days, for people to look at.
    """
    for batch in ledger.batches():
        ledger.tidy(batch)
    old = ledger.old_batches(keep_days * _DAY_S)
    sent = [identity for identities in old.values() for identity in identities]
    states = scheduler.states(sent) if sent else {}
    if states is None:
        return
    alive = {job for job, state in states.items() if state.live}
    for batch, identities in old.items():
        if not alive & {str(identity["job"]) for identity in identities}:
            ledger.remove(batch)
