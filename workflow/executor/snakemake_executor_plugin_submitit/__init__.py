"""Snakemake jobs become submitit jobs: `snakemake --executor submitit`.

    settings     what the user may choose
    executor     Snakemake's side of the plugin; everything below is free of Snakemake
    dispatch     wishes become allocations, allocations settle wishes
    request      resources of a rule -> options of sbatch (pure)
    packing      which jobs share an allocation (pure)
    submission   sbatch through submitit, and what it answers
    schedulers   squeue, sacct and scancel; or processes of this machine
    ledger       what was submitted, on disk
    reattach     jobs of an earlier run are taken up again
    ownership    a lock that a dead owner does not keep
    pack         what runs inside the allocation

Every start of Snakemake imports this package, so submitit is imported only where it is used.
"""

from .executor import Executor
from .settings import ExecutorSettings, common_settings

__all__ = ["Executor", "ExecutorSettings", "common_settings"]
