"""Schedulers by their names in `--submitit-cluster`.

To add one, write a class with the public methods of `Slurm` in a module or folder of its own, and
add a line here.
"""

from .base import SENT_FROM, Listed, Refused, State
from .slurm import Slurm, request_of

Scheduler = Slurm
SCHEDULERS = {"slurm": Slurm}

# the resources of rules are those of Slurm, wherever they run
__all__ = [
    "SCHEDULERS",
    "SENT_FROM",
    "Listed",
    "Refused",
    "Scheduler",
    "State",
    "request_of",
]
