"""Schedulers by their names in `--submitit-cluster`.

To add one, write a subclass of `base.Scheduler` in a module or folder of its own, and add a line
here.
"""

from collections.abc import Callable
from typing import Any

from .base import SENT_FROM, Kind, Listed, Refused, Scheduler, State
from .local import LocalProcesses
from .slurm import Slurm, request_of

# each is made from the executor's settings
SCHEDULERS: dict[str, Callable[[Any], Scheduler]] = {
    "slurm": Slurm,
    # the resources of rules are those of Slurm, wherever they run
    "local": lambda settings: LocalProcesses(gpus=settings.gpus, request_of=request_of),
}

__all__ = ["SCHEDULERS", "SENT_FROM", "Kind", "Listed", "Refused", "Scheduler", "State"]
