"""Run Snakemake jobs as submitit jobs: `snakemake --executor submitit`.

    settings        options of the user
    executor        Snakemake's side of the plugin; nothing below knows of Snakemake
    dispatch        takes up jobs of an earlier run, submits the others, and finishes them
    submitting      turns waiting jobs into allocations, and holds those in flight
    request         what one allocation needs
    schedulers      by name; nothing else knows of any of them
    records         records on disk of what was submitted; removes old ones
    ownership       a lock that ends with its owner
    stop            ends for good what makes given files
    pack            runs inside the allocation

Every start of Snakemake imports this package, so submitit is imported only where it is used.
"""

from .executor import Executor
from .settings import ExecutorSettings, common_settings

__all__ = ["Executor", "ExecutorSettings", "common_settings"]
