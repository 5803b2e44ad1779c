"""Snakemake's side: hands its jobs to the dispatcher, and tells it how each ended.

Three things here are not part of Snakemake's plugin interface, though its own local executor uses
them: `job.shellcmd`, `job.prepare()` and `workflow.async_run()`. They save a second Snakemake per
job.
"""

import asyncio
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from snakemake.common.tbdstring import TBDString
from snakemake.exceptions import InputFunctionException
from snakemake.shell import shell
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.real import RealExecutor
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.utils import format_cli_arg

from .dispatch import Dispatcher
from .ownership import Ownership, user_name
from .records import WantedJob, digest_of, key_of
from .request import Request, RequestError, together
from .schedulers import SCHEDULERS, request_of
from .settings import refuse_small


class Executor(RemoteExecutor):
    """Packs jobs of equal resources into allocations and finishes each job on its own."""

    def __post_init__(self) -> None:
        """Called when Snakemake starts to run, not for a dry run."""
        settings = self._settings = self.workflow.executor_settings
        if settings.cluster not in SCHEDULERS:
            names = ", ".join(SCHEDULERS)
            raise WorkflowError(f"--submitit-cluster {settings.cluster}: must be one of {names}")
        self._scheduler = SCHEDULERS[settings.cluster](settings)
        refuse_small(settings)
        if (sentence := self._scheduler.prepare()) is not None:
            self.logger.warning(sentence)
        try:
            self._ownership = Ownership()
            self._ownership.claim(
                (str(output) for job in self.workflow.dag.needrun_jobs() for output in job.output),
                self.say,
                lambda uid: self._scheduler.left_in(Path.cwd(), uid),
            )
        except PermissionError as error:
            place = Path(error.filename).parent
            raise WorkflowError(
                f"{place}: you may not write there. Who shares a folder needs `chmod -R g+rwXs` by "
                f"its owner, {user_name(place.stat().st_uid)}, and `umask 002`"
            ) from error
        self._infos: dict[str, SubmittedJobInfo] = {}  # by job key, what Snakemake waits for
        self._has_begun = False
        self._left_running = 0  # allocations
        self._dispatcher = Dispatcher(
            scheduler=self._scheduler,
            settings=settings,
            listener=self,
            latency_s=self.workflow.execution_settings.latency_wait,
            outputs_are_complete=self.workflow.dag.ignore_incomplete,
        )
        self._tidy()

    # -- submitting -------------------------------------------------------------------------------

    def run_job(self, job: Any) -> None:
        """Submit one job; Snakemake itself calls `run_jobs`."""
        self._dispatcher.submit([self._wanted_job(job)])

    def run_jobs(self, jobs: list[Any]) -> None:
        """Submit all jobs that are ready now, by their rules' priorities."""
        if not self._has_begun:
            self._refuse_the_impossible()
            self._handle_sigterm()
            self._has_begun = True
        for job in jobs:
            self.run_job_pre(job)
        # Snakemake passes a set; equal priorities by name, so that packs are reproducible
        wanted = sorted(
            map(self._wanted_job, jobs),
            key=lambda wanted: (-wanted.snakemake_job.priority, wanted.name),
        )
        self._dispatcher.submit(wanted)

    def _refuse_the_impossible(self) -> None:
        """Refuse the whole run before anything is sent, if a job cannot get what it asks for."""
        wrong: dict[str, None] = {}
        for job in self.workflow.dag.needrun_jobs():
            if job.is_local:
                continue
            if job.is_pipe or job.is_service:
                wrong[f"rule {job.rule.name}: pipe() and service() are not supported here"] = None
                continue
            try:
                self._request([job], job.rule.name)
            except RequestError as mistake:
                wrong[str(mistake)] = None
            except (WorkflowError, InputFunctionException):
                continue  # it depends on files that do not exist yet
        if wrong:
            raise WorkflowError("\n".join(wrong))

    def _request(self, members: Sequence[Any], name: str) -> Request:
        requests = []
        for job in members:
            known = {k: v for k, v in job.resources.items() if not isinstance(v, TBDString)}
            requests.append(request_of(job.rule.name, known, job.threads))
        request = together(name, requests)
        if (why := self._scheduler.impossible(request)) is not None:
            raise RequestError(f"rule {name}: {why}")
        return request

    def _wanted_job(self, job: Any) -> WantedJob:
        members = _members(job)
        rule = job.groupid if job.is_group() else job.rule.name
        request = self._request(members, rule)
        command = self._command(members[0])
        if job.is_group():  # one after another, as each may need all of the allocation
            command = " && ".join(f"( {self._command(member)} )" for member in members)
        values = () if job.is_group() else job.wildcards_dict.values()
        return WantedJob(
            name=" ".join([rule, *values]),
            key=_key(job),
            command=command,
            digest=digest_of(" ".join(map(_what_runs, members)), request.excluded),
            request=request,
            outputs=tuple(str(output) for member in members for output in member.output),
            environment={"SNAKEMAKE_ATTEMPT": str(job.attempt)},
            snakemake_job=job,
        )

    def _command(self, job: Any) -> str:
        """The rule's own shell command; a child Snakemake for what only Snakemake can run.

        A child costs two seconds and sets OMP_NUM_THREADS, which falsifies measurements.
        """
        if self._is_plain(job):
            return f"{shell._get_process_prefix()}{job.shellcmd}{shell._process_suffix}"
        return str(self.format_job_exec(job))

    def _is_plain(self, job: Any) -> bool:
        rule = job.rule
        deployed = self.workflow.deployment_settings.deployment_method and (
            rule.container_img or rule.conda_env or rule.env_modules
        )
        return job.is_shell and not (
            deployed or job.benchmark or job.is_shadow or job.resources.get("shell_exec")
        )

    def get_python_executable(self) -> str:
        """The Python of a child Snakemake as a word of its command: its path may have a space."""
        return shlex.quote(super().get_python_executable())

    def get_job_args(self, job: Any, **kwargs: Any) -> str:
        """Arguments of a child Snakemake.

        The base class lets it wait for a temporary folder of this process, which is gone after a
        restart; the child would then exit with 0 without having run.
        """
        inputs = format_cli_arg("--wait-for-files", job.get_wait_for_files())
        return f"{RealExecutor.get_job_args(self, job, **kwargs)} {inputs}"

    # -- called by the dispatcher (see `Listener`) ------------------------------------------------

    def prepare(self, wanted: WantedJob) -> None:
        """Remove old outputs and make folders, as before any run; in Snakemake's thread only."""
        job = wanted.snakemake_job
        try:
            if not job.is_group() and self._is_plain(job):
                self.workflow.async_run(job.prepare())
                return
            # a child Snakemake makes its shadow; the input of a group's jobs may not be there yet
            for member in _members(job):
                self.workflow.async_run(member.remove_existing_output())
                for file in (*member.output, *member.log):
                    file.prepare()
        except OSError as error:
            place = error.filename or ", ".join(map(str, job.output))
            raise WorkflowError(f"{place}: cannot be written: {error.strerror}") from error

    def sent(self, wanted: WantedJob, job_id: str) -> None:
        """Have Snakemake mark the outputs as incomplete and wait."""
        key = wanted.key
        info = SubmittedJobInfo(wanted.snakemake_job, external_jobid=job_id, aux={"key": key})
        self._infos[key] = info
        self.report_job_submission(info)

    def succeeded(self, wanted: WantedJob) -> None:
        """Have Snakemake check the outputs and go on."""
        self.report_job_success(self._infos.pop(wanted.key))

    def failed(self, wanted: WantedJob, why: str, logs: Sequence[Path]) -> None:
        """Have Snakemake remove the outputs, and retry the job if it may."""
        info = self._infos.pop(wanted.key, None) or SubmittedJobInfo(wanted.snakemake_job)
        self.report_job_error(info, msg=f"{why}. ", aux_logs=[str(log) for log in logs])

    def say(self, sentence: str) -> None:
        """Print a sentence on the terminal and to Snakemake's log."""
        self.logger.info(sentence)

    def handle_job_success(self, job: Any) -> None:
        """Snakemake has recorded the success; before that, a new run could still re-attach."""
        super().handle_job_success(job)
        self._dispatcher.recorded(_key(job))

    def handle_job_error(self, job: Any) -> None:
        """Snakemake has cleaned up after the job; a retry is sent anew."""
        super().handle_job_error(job)
        self._dispatcher.recorded(_key(job))

    # -- the polling thread -----------------------------------------------------------------------

    async def check_active_jobs(
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncIterator[SubmittedJobInfo]:
        """Finish what has ended; yields what is still pending."""
        try:
            if self._ownership.is_lost:
                raise WorkflowError(  # the jobs belong to the other one now
                    "this snakemake was silent for so long that another one has taken over"
                )
            self._dispatcher.poll()
        except OSError as error:
            # a shared file system is briefly unavailable; raising here would end the run
            self.say(f"{error}; jobs run on, and this will be tried again")
        for info in active_jobs:
            if self._infos.get(info.aux["key"]) is info:
                yield info

    async def sleep(self) -> None:
        """Sleep until the next poll, or until the run ends."""
        end = time.monotonic() + self.next_seconds_between_status_checks
        while self.wait and (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, 0.2))

    # -- the end ----------------------------------------------------------------------------------

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Handle Ctrl-C, and an error of Snakemake's own, such as a full disk.

        The error is no reason to end what runs. The list lacks jobs that are being finished.
        """
        error = sys.exc_info()[1]
        is_told = error is None or isinstance(error, (KeyboardInterrupt, SystemExit))
        if self._ownership.is_lost or not is_told:
            count = self._left_running = self._dispatcher.detach()
            self.say(f"{count} jobs are left running; the same command re-attaches to them")
        else:
            self.say(f"{self._dispatcher.cancel()} jobs cancelled")

    def _handle_sigterm(self) -> None:
        """Make SIGTERM stop sending too: Snakemake itself lets running jobs finish."""
        snakemake_handler = signal.getsignal(signal.SIGTERM)

        def handle(number: int, frame: Any) -> None:
            self._dispatcher.send_no_more()
            if callable(snakemake_handler):
                snakemake_handler(number, frame)

        signal.signal(signal.SIGTERM, handle)

    def shutdown(self) -> None:
        """Called once at every end."""
        super().shutdown()
        for sentence in self._dispatcher.report():
            self.say(sentence)
        self._tidy()
        self._ownership.release(jobs_run_on=bool(self._left_running))

    def _tidy(self) -> None:
        if not self._settings.keep_folders:
            self._dispatcher.tidy()


def _members(job: Any) -> list[Any]:
    """The jobs of a group in an order in which they can run; of a job, itself."""
    if not job.is_group():
        return [job]
    return [each for level in job.toposorted for each in sorted(level, key=str)]


def _key(job: Any) -> str:
    outputs = [str(output) for member in _members(job) for output in member.output]
    name, wildcards = ("", {}) if job.is_group() else (job.rule.name, job.wildcards_dict)
    return key_of(name, wildcards, outputs)


def _what_runs(job: Any) -> str:
    """The command of a job, and the parameters by whose change Snakemake would run it again."""
    return " ".join([job.shellcmd or job.rule.name, *map(str, job.non_derived_params)])
