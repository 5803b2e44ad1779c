"""Records and logs that nobody will ask for."""

from .ledger import Ledger
from .schedulers import Scheduler

# what failed is kept so long for people to look at
OLD_S = 30 * 86400.0


def tidy(ledger: Ledger, scheduler: Scheduler) -> None:
    """Remove batches in which all went well, and those that are old; never one that may yet run."""
    for batch in ledger.batches():
        ledger.tidy(batch)
    old = ledger.old(OLD_S)
    sent = [identity for identities in old.values() for identity in identities]
    states = scheduler.states(sent) if sent else {}
    if states is None:
        return
    alive = {job for job, state in states.items() if state.live}
    for batch, identities in old.items():
        if not alive & {str(identity["job"]) for identity in identities}:
            ledger.remove(batch)
