"""A cluster's Slurm options."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm:
    """The `slurm:` block of a cluster; options left out are the site's defaults (docs/slurm.md)."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    exclusive: bool = False
    gres: str | None = None
    cpus_per_task: int | None = None
    mem_mb: int | None = None
    max_minutes: int | None = None  # of a job in the partition
    dependency: str | None = None
    setup: tuple[str, ...] = ()
    srun_args: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
