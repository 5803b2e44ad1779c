"""Slurm: everything that the executor knows about it.

scheduler   sbatch through submitit, and one squeue per poll for all jobs resources   resources of a
rule -> options of sbatch (pure) allocation  what a pack asks of Slurm from inside
"""

from .resources import request_of
from .scheduler import Slurm

__all__ = ["Slurm", "request_of"]
