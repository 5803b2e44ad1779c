"""Snakemake jobs become submitit jobs: `snakemake --executor submitit`.

No `from __future__ import annotations` here: Snakemake reads the types of the settings' fields, and
a type that has become a string breaks every call of `snakemake`.
"""

from dataclasses import dataclass, field
from typing import Optional

from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """What `--submitit-...` options set."""

    cluster: Optional[str] = field(
        default=None, metadata={"help": "slurm or local", "env_var": False, "required": False}
    )


common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    auto_deploy_default_storage_provider=False,
    init_seconds_before_status_checks=1,
)


class Executor(RemoteExecutor):
    """Under construction."""

    def run_job(self, job: JobExecutorInterface) -> None:
        raise NotImplementedError

    async def check_active_jobs(self, active_jobs: list[SubmittedJobInfo]):
        for info in active_jobs:
            yield info

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        pass
