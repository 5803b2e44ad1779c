"""Runs inside the allocation: the jobs of one pack, one after another.

Only the standard library, and pickled by value: compute nodes need neither Snakemake nor this
package, and an edit of it does not touch what already waits in the queue.
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

# what a job says by its exit code; any other one is a verdict on the job
NOT_WRITTEN = 74  # EX_IOERR: what it made could not be written, as on a disk that is full
INTERRUPTED = 75  # EX_TEMPFAIL: it was ended from outside, and is wanted as before
UNFIT_HOST = 76  # nothing of its kind can run on this host

# names a file by which a job says that it needs this machine no more and only writes what it has
RELEASED = "SUBMITIT_RELEASED"

# shorter than the 30 s that schedulers usually give, so that we are the ones who clean up
GRACE_S = 10.0
# what a job has started is ended first, and we are told a little later
OUR_TURN_S = 2.0
# until an allocation that is to begin anew is ended
_REQUEUE_S = 60.0
_POLL_S = 0.05
_LOOK_EVERY_S = 2.0  # whether a job was withdrawn: on a shared file system


class Surroundings:
    """What a pack asks of whoever gave it this machine; here nobody did."""

    def restarts(self) -> int:
        """How often this allocation was started anew."""
        return 0

    def host(self) -> str:
        """The name by which this machine can be avoided."""
        return os.uname().nodename

    def for_jobs(self) -> dict[str, str]:
        """What the jobs' environment needs to start something here."""
        return {}

    def end_leftovers(self) -> None:
        """End what a job that failed has left on other machines."""

    def begin_anew(self) -> bool:
        """Have this allocation started anew; whether that will be."""
        return False


class Job:
    """A job of a pack that runs, in a session of its own: one signal reaches all of it only."""

    def __init__(
        self, folder: Path, number: int, item: Mapping[str, Any], pack: Mapping[str, Any],
        environment: Mapping[str, str],
    ) -> None:  # fmt: skip
        self.number, self.item = number, item
        self.began = time.time()
        self._withdrawn = folder / f"{number}.withdrawn"
        self._ends_s = time.monotonic() + item["limit_s"]
        self._looks_s = 0.0
        # on this machine: asked often
        self._released = Path(tempfile.gettempdir()) / f"released-{uuid.uuid4().hex}"
        with (folder / f"{number}.log").open("ab") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", item["command"]],
                cwd=pack["directory"],
                env={**environment, RELEASED: str(self._released)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def released(self) -> bool:
        """Whether it says that it needs this machine no more: it only writes what it has."""
        return self._released.exists()

    def over(self) -> str | None:
        """Why it is over or has to end; None: it may run on."""
        if self.process.poll() is not None:
            return "ended"
        now = time.monotonic()
        if now >= self._ends_s:
            return "time limit"
        if now < self._looks_s:
            return None
        self._looks_s = now + _LOOK_EVERY_S
        return "withdrawn" if self._withdrawn.exists() else None

    def end(self, grace_s: float = 0.0) -> int:
        """End it and whatever it left behind in its session; its exit code.

        A job that is ended from outside, by us or by others, gets time to clean up: its shell dies
        at once, what the shell has started may need longer. One that only writes gets `grace_s` to
        finish first.
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
    """Runs the jobs that `pack.json` in its folder names; each is settled in a file of its own.

    Jobs that are settled already are skipped, so a restarted allocation goes on where it was.
    A job that ends because the allocation ends is not settled: it is still wanted. While a job that
    has released the machine writes what it has, the next one starts; a third waits for it.
    """

    def __init__(
        self, folder: str, max_restarts: int, surroundings: Surroundings | None = None
    ) -> None:
        self.folder = folder
        self.max_restarts = max_restarts
        self.surroundings = surroundings or Surroundings()
        self._running: list[Job] = []  # in the order they began; all but the last only write

    def __call__(self) -> int:
        """Run what is not settled; returns how many jobs that were.

        Raises:
            SystemExit: all of them failed, or the rest is not to be run here and now.
            OSError: a job's end could not be written down as usual: the disk is full.
        """
        folder = Path(self.folder)
        restarts = self.surroundings.restarts()
        write_json(folder / "started.json", {"restarts": restarts, "host": os.uname().nodename})
        if restarts > self.max_restarts:
            raise RuntimeError(f"given up: restarted {restarts} times")
        # submitit lets SIGTERM pass unheeded; then our job would outlive a cancel
        signal.signal(signal.SIGTERM, self._terminated)
        pack: dict[str, Any] = json.loads((folder / "pack.json").read_text())
        codes: list[int] = []
        try:
            for number, item in enumerate(pack["items"]):
                if any(any(folder.glob(f"{number}.{end}*")) for end in ("settled", "withdrawn")):
                    continue
                self._start(folder, number, item, pack)
                codes += self._wait(folder, for_the_next=True)
            codes += self._wait(folder)
        finally:  # also when a signal handler raised through the wait
            self._stop()
        if codes and all(codes):
            raise SystemExit(f"all jobs of this pack failed, with exit codes {codes}")
        return len(codes)

    def checkpoint(self) -> Any:
        """Called by submitit when preemption or the end of the time limit is announced."""
        from submitit.helpers import DelayedSubmission

        self._stop()
        return DelayedSubmission(Pack(self.folder, self.max_restarts, self.surroundings))

    def _start(
        self, folder: Path, number: int, item: Mapping[str, Any], pack: Mapping[str, Any]
    ) -> None:
        environment = {k: v for k, v in os.environ.items() if k != "SNAKEMAKE_PROFILE"}
        environment |= self.surroundings.for_jobs() | pack["environment"] | item["environment"]
        job = Job(folder, number, item, pack, environment)
        self._running.append(job)
        facts = {"pid": job.process.pid, "host": os.uname().nodename, "began": job.began}
        write_json(folder / f"{number}.running.json", facts)

    def _wait(self, folder: Path, *, for_the_next: bool = False) -> Iterator[int]:
        """Settle what ends until none runs, or the next may start; yields exit codes."""
        while self._running:
            if for_the_next and len(self._running) == 1 and self._running[0].released():
                return
            for job in list(self._running):
                if (reason := job.over()) is not None:
                    yield self._settle(folder, job, reason)
            time.sleep(_POLL_S)

    def _settle(self, folder: Path, job: Job, reason: str) -> int:
        had_released = job.released()
        code = job.end()
        self._running.remove(job)
        if code != 0 and not had_released:
            self.surroundings.end_leftovers()
        if reason == "withdrawn":
            return code
        if reason == "ended":
            if code == NOT_WRITTEN:
                self._leave(folder, job.number, "could not write its results")
            if code == UNFIT_HOST:
                self._leave_host(folder, job)
            if code in (INTERRUPTED, 128 + signal.SIGTERM, -signal.SIGTERM):
                self._leave_for_later(folder, job.number)
            if code < 0 or code > 128:
                time.sleep(1)  # if the allocation is ending, our own signal is on its way
        _settle(folder, job, reason, code)
        return code

    def _leave_for_later(self, folder: Path, number: int) -> None:
        """A job was ended from outside: somebody may be about to take the nodes away.

        So nothing more is started, and the allocation is given back to begin anew later.
        """
        time.sleep(OUR_TURN_S)
        if self.surroundings.begin_anew():
            self._forget_begun(folder, number)
            time.sleep(_REQUEUE_S)  # the end comes as SIGTERM
        self._leave(folder, number, "was ended from outside")

    def _leave_host(self, folder: Path, job: Job) -> None:
        """Nothing more is started where nothing can run."""
        host = self.surroundings.host()
        why = f"{job.item.get('name', 'a job')} found that nothing can run there"
        write_json(folder / "unfit.json", {"host": host, "why": why})
        self._leave(folder, job.number, f"cannot run on {host}")

    def _leave(self, folder: Path, number: int, why: str) -> None:
        """End the allocation; all that is not settled is wanted as if it had not begun."""
        self._forget_begun(folder, number)
        raise SystemExit(f"job {number} {why}; it and the rest are left for later")

    def _forget_begun(self, folder: Path, *numbers: int) -> None:
        for number in [*numbers, *(job.number for job in self._running)]:
            (folder / f"{number}.running.json").unlink(missing_ok=True)

    def _stop(self) -> None:
        """End what runs; what only writes may finish first, and is settled where it does."""
        until = time.monotonic() + GRACE_S
        while self._running:
            job = self._running.pop()
            released = job.released()
            if job.end(max(0.0, until - time.monotonic()) if released else 0.0) == 0 and released:
                with contextlib.suppress(OSError):  # a full disk; it counts as settled all the same
                    _settle(Path(self.folder), job, "ended", 0)

    def _terminated(self, number: int, frame: Any) -> None:
        raise SystemExit(128 + number)


def _settle(folder: Path, job: Job, reason: str, code: int) -> None:
    """Write down how a job ended.

    On a disk that is full only names can still change: that of the marker says what counts, and
    keeps the job from being repeated. One that failed may have failed of that, and stays wanted.
    """
    how = {"code": code, "reason": reason, "began": job.began, "ended": time.time()}
    try:
        write_json(folder / f"{job.number}.settled.json", how)
    except OSError:
        if code == 0:
            marker = folder / f"{job.number}.running.json"
            marker.replace(folder / f"{job.number}.settled-without-a-record")
        raise


def _signal(session: int, number: int) -> None:
    try:
        os.killpg(session, number)
    except ProcessLookupError:
        return  # gone already


def _lives(session: int) -> bool:
    """Whether any process of this session's group still runs; one that is not reaped does not."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue  # it has just ended
        if int(group) == session and state != "Z":
            return True
    return False


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write whole or not at all: whoever reads it sits on another machine."""
    part = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.part")
    try:
        part.write_text(json.dumps(value) + "\n")
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
