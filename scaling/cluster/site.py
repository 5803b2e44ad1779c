"""A cluster's Slurm options, and how a Snakemake rule states them as resources."""

import shlex
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
    setup: tuple[str, ...] = ()
    srun_args: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()


def slurm_resources(site: Slurm) -> dict[str, str | int]:
    """The Slurm resources shared by all points; nodes and ranks depend on the layout.

    Lists of options become one string quoted for the shell, and set-up lines one text.
    """
    resources: dict[str, str | int | None] = {
        "slurm_partition": site.partition,
        "slurm_account": site.account,
        "slurm_qos": site.qos,
        "slurm_constraint": site.constraint,
        "slurm_reservation": site.reservation,
        "slurm_exclusive": 1 if site.exclusive else None,
        "cpus_per_task": site.cpus_per_task,
        "mem_mb": site.mem_mb,
        "slurm_setup": "\n".join(site.setup) or None,
        "srun_args": shlex.join(site.srun_args) or None,
        "slurm_extra": shlex.join(site.extra) or None,
    }
    return {name: value for name, value in resources.items() if value is not None}
