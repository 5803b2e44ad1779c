"""Options `--submitit-...` and keys `submitit-...` of the profile.

No `from __future__ import annotations` here: Snakemake reads the types of the fields, and with
strings for types every call of `snakemake` fails.
"""

from dataclasses import dataclass, field
from typing import Any, Optional

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase


def _option(default: Any, sentence: str) -> Any:
    metadata = {"help": sentence, "env_var": False, "required": False}
    return field(default=default, metadata=metadata)


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """Options of `--executor submitit`; every one has a default."""

    cluster: str = _option("slurm", "Where jobs go: slurm, or a scheduler of your own.")
    pack: int = _option(
        1, "Run up to this many jobs of equal resources one after another in one allocation."
    )
    pack_minutes: Optional[int] = _option(
        None, "Longest time limit of one allocation; packs stay below it (default: no limit)."
    )
    max_allocations: Optional[int] = _option(
        None, "Allocations that may wait or run at once; other jobs wait here (default: all)."
    )
    max_restarts: int = _option(
        3,
        "How often a job may start again in one run, whatever interrupted it, before it fails.",
    )
    keep_folders: bool = _option(
        False, "Keep the records and logs of allocations in which every job succeeded."
    )


# The smallest value of each number; with none to send in flight, a run would wait for ever.
_LEAST = {"pack": 1, "pack_minutes": 1, "max_allocations": 1, "max_restarts": 0}


def refuse_small(settings: ExecutorSettings) -> None:
    """Refuse a number that is too small.

    Raises:
        WorkflowError: the first such number, in one sentence.
    """
    for name, least in _LEAST.items():
        value = getattr(settings, name)
        if value is not None and value < least:
            option = f"--submitit-{name.replace('_', '-')}"
            raise WorkflowError(f"{option} {value}: must be at least {least}")


common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    auto_deploy_default_storage_provider=False,
    # the polling thread starts in the base class's __init__, before our __post_init__
    init_seconds_before_status_checks=1,
)
