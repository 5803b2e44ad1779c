"""Snakemake jobs become submitit jobs: `snakemake --executor submitit`.

    settings     what the user may choose
    executor     Snakemake's side of the plugin; everything below is free of Snakemake
    dispatch     wishes are taken up or sent, and settled
    outbox       what waits to be sent becomes allocations
    backoff      when a request that was not taken is sent again
    strays       what may have been taken without a word
    unfit        hosts that get nothing more
    listener     who is told of all that
    allocations  what waits and what is in flight
    request      what one allocation needs
    packing      which jobs share an allocation (pure)
    schedulers   by name; only there is anything known of any of them
    ledger       what was submitted, on disk
    reattach     jobs of an earlier run are taken up again
    ownership    a lock that a dead owner does not keep
    tidying      what nobody will ask for goes
    stop         ends what makes certain files, for good
    pack         what runs inside the allocation

Every start of Snakemake imports this package, so submitit is imported only where it is used.
"""

from .executor import Executor
from .settings import ExecutorSettings, common_settings

__all__ = ["Executor", "ExecutorSettings", "common_settings"]
