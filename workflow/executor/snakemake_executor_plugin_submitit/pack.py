"""Runs inside the allocation: the jobs of one pack, one after another.

Uses the standard library only and is pickled by value. So compute nodes need neither Snakemake nor
this package, and editing it does not affect what already waits in the queue.
"""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# Exit codes of a job with a meaning of their own; any other one is about the job itself.
NOT_WRITTEN = 74  # EX_IOERR: its results could not be written, for example on a full disk
INTERRUPTED = 75  # EX_TEMPFAIL: it was ended from outside, and is still wanted
UNUSABLE_HOST = 76  # nothing of its kind can run on this host

# Variable with the name of a file that a job makes when it no longer needs this machine and only
# writes its results.
RELEASED = "SUBMITIT_RELEASED"

# Shorter than the 30 s that schedulers usually give, so that this process does the clean-up.
GRACE_S = 10.0
# A scheduler that ends an allocation signals its jobs first and this process a little later.
OUR_TURN_S = 2.0
# Until the scheduler ends an allocation that it requeues.
_REQUEUE_S = 60.0
_POLL_S = 0.05
# A longer gap between two polls means that all of it was suspended from outside.
_SUSPENDED_S = 15.0
_LOOK_EVERY_S = 2.0  # for a withdrawal and a newer start, on a shared file system


class AllocationContext:
    """A pack's questions to the scheduler of this machine; here without one."""

    def restarts(self) -> int:
        """How often this allocation was restarted."""
        return 0

    def host(self) -> str:
        """The name by which a request can exclude this machine."""
        return os.uname().nodename

    def job_environment(self) -> dict[str, str]:
        """Environment variables that jobs need to start something here."""
        return {}

    def kill_leftovers(self) -> None:
        """Kill what a failed job has left on other machines."""

    def requeue(self) -> bool:
        """Have this allocation started again later; whether that will happen."""
        return False


class Job:
    """A running job of a pack, in a session of its own, so that a signal reaches all of it only."""

    def __init__(
        self, number: int, item: Mapping[str, Any], environment: Mapping[str, str],
        directory: str, log: Path,
    ) -> None:  # fmt: skip
        self.number, self.item = number, item
        self.began = time.time()
        self._kills_before = oom_kills()
        self._polled_s = time.monotonic()
        self._ends_s = self._polled_s + item["limit_s"]  # not counting suspensions
        # on this machine, as it is polled often
        self._released = Path(tempfile.gettempdir()) / f"released-{uuid.uuid4().hex}"
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                ["bash", "-c", item["command"]],
                cwd=directory,
                env={**environment, RELEASED: str(self._released)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def released(self) -> bool:
        """Whether the job no longer needs this machine and only writes its results."""
        return self._released.exists()

    def why_over(self) -> str | None:
        """Why the job is over or must end; None: it may run on."""
        if self.process.poll() is not None:
            return "ended"
        now = time.monotonic()
        if now - self._polled_s > _SUSPENDED_S:
            self._ends_s += now - self._polled_s
        self._polled_s = now
        return "time limit" if now >= self._ends_s else None

    def killed_for_memory(self, code: int) -> bool:
        """Whether the kernel ended it since its memory ran out, by its exit code."""
        killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL)
        return killed and oom_kills() > self._kills_before

    def end(self, grace_s: float = 0.0) -> int:
        """End the job and whatever it left in its session; returns its exit code.

        A job that is ended from outside gets time to clean up: its shell dies at once, but what the
        shell has started may need longer. A job that only writes gets `grace_s` to finish first.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(grace_s)
        code = self.process.poll()
        if code is None or code < 0 or code > 128:
            _signal(self.process.pid, signal.SIGTERM)
            end = time.monotonic() + GRACE_S
            while time.monotonic() < end and _lives(self.process.pid):
                self.process.poll()
                time.sleep(_POLL_S)
        _signal(self.process.pid, signal.SIGKILL)
        self._released.unlink(missing_ok=True)
        return self.process.wait()


class Pack:
    """Runs the jobs of `pack.json` in its folder; each is finished in a file of its own.

    Jobs that are finished already are skipped, so a restarted allocation continues. A job that ends
    because the allocation ends is not finished and stays wanted. While a job that has released the
    machine writes its results, the next one starts; a third waits.
    """

    def __init__(self, folder: Path, context: AllocationContext | None = None) -> None:
        self._folder = folder
        self._context = context or AllocationContext()
        self._running: list[Job] = []  # in order of start; all but the last only write

    def __call__(self) -> int:
        """Run the jobs that are not finished; returns their number.

        Raises:
            SystemExit: all of them failed, or the rest cannot run here and now.
            OSError: a job's end could not be recorded, as the disk is full.
        """
        restarts = self._restarts = self._context.restarts()
        self._looks_s, self._told = 0.0, list[int]()
        started = {"restarts": restarts, "host": os.uname().nodename}
        write_json(self._folder / "started.json", started)
        pack: dict[str, Any] = json.loads((self._folder / "pack.json").read_text())
        if restarts > pack["restarts"]:
            raise RuntimeError(f"given up: restarted {restarts} times")
        # Submitit ignores SIGTERM, so a job would outlive a cancel. It is noted here, and heeded in
        # a pause: no job that has just started is lost, and no second signal disturbs the end.
        signal.signal(signal.SIGTERM, lambda number, _: self._told.append(number))
        if restarts:  # an earlier start may live on a node that was lost, until it looks
            self._pause(_LOOK_EVERY_S)
        # what was left for later goes behind those that had no turn
        turns = sorted((self._times_returned(n), n) for n in range(len(pack["items"])))
        codes: list[int] = []
        try:
            for _, number in turns:
                if self._is_wanted(number, pack):
                    self._start(number, pack)
                    codes += self._wait(for_the_next=True)
            codes += self._wait()
        finally:  # also when a signal ended the wait
            self._stop()
        if codes and all(codes):
            raise SystemExit(f"all jobs of this pack failed, with exit codes {codes}")
        return len(codes)

    def checkpoint(self) -> Any:
        """Called by submitit when preemption or the end of the time limit is announced."""
        from submitit.helpers import DelayedSubmission

        self._stop()
        return DelayedSubmission(self)

    def _times_returned(self, number: int) -> int:
        try:
            return (self._folder / f"{number}.returned").stat().st_size
        except OSError:
            return 0

    def _is_wanted(self, number: int, pack: Mapping[str, Any]) -> bool:
        """Whether a job has neither ended nor been withdrawn.

        One that was killed after its outputs were there is finished now. Outputs of earlier runs
        were removed before it was sent.
        """
        if any(any(self._folder.glob(f"{number}.{end}*")) for end in ("finished", "withdrawn")):
            return False
        named = pack["items"][number]["outputs"] if pack["outputs_are_complete"] else ()
        outputs = [Path(pack["directory"], name) for name in named]
        if not outputs or not all(output.exists() for output in outputs):
            return True
        self._record(number, "ended", 0, max(output.stat().st_mtime for output in outputs))
        return False

    def _start(self, number: int, pack: Mapping[str, Any]) -> None:
        item = pack["items"][number]
        environment = {k: v for k, v in os.environ.items() if k != "SNAKEMAKE_PROFILE"}
        environment |= self._context.job_environment() | pack["environment"] | item["environment"]
        job = Job(number, item, environment, pack["directory"], self._folder / f"{number}.log")
        self._running.append(job)
        facts = {"pid": job.process.pid, "host": os.uname().nodename, "began": job.began}
        write_json(self._folder / f"{number}.running.json", facts)

    def _wait(self, *, for_the_next: bool = False) -> Iterator[int]:
        """Finish jobs that end, until none runs or the next may start; yields exit codes."""
        while self._running:
            if for_the_next and len(self._running) == 1 and self._running[0].released():
                return
            for job in list(self._running):
                if (reason := job.why_over()) is not None:
                    yield self._finish(job, reason)
            if time.monotonic() >= self._looks_s:
                self._looks_s = time.monotonic() + _LOOK_EVERY_S
                self._end_if_started_again()
                for job in list(self._running):
                    if (self._folder / f"{job.number}.withdrawn").exists():
                        yield self._end(job)
            self._pause(_POLL_S)

    def _end_if_started_again(self) -> None:
        """Kill everything at once if this allocation was started anew on another node."""
        try:
            newest = json.loads((self._folder / "started.json").read_text())["restarts"]
        except (OSError, ValueError):
            return  # a shared file system is briefly unavailable
        if newest > self._restarts:
            for job in self._running:
                _signal(job.process.pid, signal.SIGKILL)
            raise SystemExit("this allocation was started again elsewhere")

    def _end(self, job: Job) -> int:
        """End a job and what it has left on other machines; returns its exit code."""
        had_released = job.released()
        code = job.end()
        self._running.remove(job)
        if code != 0 and not had_released:
            self._context.kill_leftovers()
        return code

    def _finish(self, job: Job, reason: str) -> int:
        code = self._end(job)
        if reason == "ended":
            if code == NOT_WRITTEN:
                self._stop_early(job, "could not write its results")
            if code == UNUSABLE_HOST:
                host = self._context.host()
                why = f"{job.item['name']} found that nothing can run there"
                write_json(self._folder / "unusable.json", {"host": host, "why": why})
                self._stop_early(job, f"cannot run on {host}")
            if code in (INTERRUPTED, 128 + signal.SIGTERM, -signal.SIGTERM):
                self._pause(OUR_TURN_S)  # somebody may be about to take the nodes away
                if self._context.requeue():
                    self._return(job)
                    self._pause(_REQUEUE_S)  # SIGTERM ends this process meanwhile
                self._stop_early(job, "was ended from outside")
            if job.killed_for_memory(code):
                reason = "memory limit"
            if code:  # if the allocation is ending, this process's signal is there or on its way
                self._pause(1 if code < 0 or code > 128 else 0)
        self._record(job.number, reason, code, job.began)
        return code

    def _record(self, number: int, reason: str, code: int, began: float) -> None:
        how = {"code": code, "reason": reason, "began": began, "ended": time.time()}
        write_json(self._folder / f"{number}.finished.json", how)

    def _stop_early(self, job: Job, why: str) -> None:
        """End the allocation; unfinished jobs are wanted as if they had not begun."""
        self._return(job)
        raise SystemExit(f"job {job.number} {why}; it and the rest are left for later")

    def _return(self, job: Job) -> None:
        """Leave a job for later, and what still runs as if it had not begun."""
        # a full disk loses a turn only
        with contextlib.suppress(OSError), (self._folder / f"{job.number}.returned").open("a") as f:
            f.write(".")
        for each in [job, *self._running]:
            (self._folder / f"{each.number}.running.json").unlink(missing_ok=True)

    def _stop(self) -> None:
        """End running jobs; those that only write may finish first and are finished then."""
        until = time.monotonic() + GRACE_S
        while self._running:
            job = self._running.pop()
            released = job.released()
            if job.end(max(0.0, until - time.monotonic()) if released else 0.0) == 0 and released:
                with contextlib.suppress(OSError):  # a full disk
                    self._record(job.number, "ended", 0, job.began)

    def _pause(self, seconds: float) -> None:
        """Wait, unless SIGTERM has come or comes: then this process ends."""
        end = time.monotonic() + seconds
        while not self._told and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _POLL_S))
        if self._told:
            raise SystemExit(128 + self._told[0])


def oom_kills() -> int:
    """Processes of this machine that the kernel has ended for lack of memory, in any job.

    Only the rise between two calls means something. 0 if the kernel does not tell.
    """
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def _signal(session: int, number: int) -> None:
    try:
        os.killpg(session, number)
    except ProcessLookupError:
        return  # gone already


def _lives(session: int) -> bool:
    """Whether any process of this session's group still runs; unreaped ones do not count."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue  # it has just ended
        if int(group) == session and state != "Z":
            return True
    return False


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a file atomically, as readers are on other machines."""
    part = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.part")
    try:
        part.write_text(json.dumps(value) + "\n")
        part.replace(path)
    except BaseException:  # Ctrl-C too
        part.unlink(missing_ok=True)
        raise
