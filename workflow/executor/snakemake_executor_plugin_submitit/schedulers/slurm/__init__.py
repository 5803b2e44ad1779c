"""Slurm: everything that the executor knows about it.

`scheduler` calls sbatch by submitit, and squeue once per poll. `resources` turns a rule's resources
into options of sbatch. `words` has the meaning of Slurm's messages. `allocation` is what a pack
asks Slurm from inside.
"""

from .resources import request_of
from .scheduler import Slurm

__all__ = ["Slurm", "request_of"]
