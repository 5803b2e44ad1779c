"""Schedulers by their names in `--submitit-cluster`.

To add one, write a subclass of `base.Scheduler` in a module or folder of its own, and add a line
here.
"""

from collections.abc import Callable

from ..settings import ExecutorSettings
from .base import SENT_FROM, Kind, Listed, Refused, Scheduler, State
from .slurm import Slurm, request_of

SCHEDULERS: dict[str, Callable[[ExecutorSettings], Scheduler]] = {
    "slurm": Slurm,
}

# the resources of rules are those of Slurm, wherever they run
__all__ = [
    "SCHEDULERS",
    "SENT_FROM",
    "Kind",
    "Listed",
    "Refused",
    "Scheduler",
    "State",
    "request_of",
]
