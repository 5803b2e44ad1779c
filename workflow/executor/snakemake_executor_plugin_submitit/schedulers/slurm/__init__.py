"""Slurm, and all of its words that the executor knows.

scheduler   sbatch through submitit, and one squeue a poll for everything
resources   resources of a rule -> options of sbatch (pure)
allocation  what a pack asks of Slurm inside
"""

from .resources import request_of
from .scheduler import Slurm

__all__ = ["Slurm", "request_of"]
