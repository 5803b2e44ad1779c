"""Schedulers by the name that `--submitit-cluster` knows them by.

A new one is a class that does what `base.Scheduler` says, in a module of its own, and a line here.
"""

from collections.abc import Callable
from typing import Any

from .base import Kind, Refused, Scheduler, State
from .local import LocalProcesses
from .slurm import Slurm

# each is made from the executor's settings
SCHEDULERS: dict[str, Callable[[Any], Scheduler]] = {
    "slurm": lambda settings: Slurm(max_restarts=settings.max_restarts, array=settings.array),
    "local": lambda settings: LocalProcesses(gpus=settings.gpus),
}

__all__ = ["SCHEDULERS", "Kind", "Refused", "Scheduler", "State"]
