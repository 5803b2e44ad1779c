"""Runs inside the allocation: the jobs of one pack, one after another.

Only the standard library, and pickled by value: compute nodes need neither Snakemake nor this
package, and an edit of it does not touch what already waits in the queue.
"""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

# what a job says by its exit code; any other one is a verdict on the job
NOT_WRITTEN = 74  # EX_IOERR: what it made could not be written, as on a disk that is full
INTERRUPTED = 75  # EX_TEMPFAIL: it was ended from outside, and is wanted as before
UNFIT_HOST = 76  # nothing of its kind can run on this host

# shorter than the 30 s that schedulers usually give, so that we are the ones who clean up
GRACE_S = 10.0
# what a job has started is ended first, and we are told a little later
OUR_TURN_S = 2.0
# until an allocation that is to begin anew is ended
_REQUEUE_S = 60.0


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


class Pack:
    """Runs the jobs that `pack.json` in its folder names; each is settled in a file of its own.

    Jobs that are settled already are skipped, so a restarted allocation goes on where it was.
    A job that ends because the allocation ends is not settled: it is still wanted.
    """

    def __init__(
        self, folder: str, max_restarts: int, surroundings: Surroundings | None = None
    ) -> None:
        self.folder = folder
        self.max_restarts = max_restarts
        self.surroundings = surroundings or Surroundings()
        self._process: subprocess.Popen[bytes] | None = None

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
        codes = []
        for number, item in enumerate(pack["items"]):
            if any(folder.glob(f"{number}.settled*")) or (folder / f"{number}.withdrawn").exists():
                continue
            codes.append(self._run(folder, number, item, pack))
        if codes and all(codes):
            raise SystemExit(f"all jobs of this pack failed, with exit codes {codes}")
        return len(codes)

    def checkpoint(self) -> Any:
        """Called by submitit when preemption or the end of the time limit is announced."""
        from submitit.helpers import DelayedSubmission

        self._stop()
        return DelayedSubmission(Pack(self.folder, self.max_restarts, self.surroundings))

    def _run(self, folder: Path, number: int, item: dict[str, Any], pack: dict[str, Any]) -> int:
        environment = {k: v for k, v in os.environ.items() if k != "SNAKEMAKE_PROFILE"}
        environment |= self.surroundings.for_jobs() | pack["environment"] | item["environment"]
        began = time.time()
        marker = folder / f"{number}.running.json"
        with (folder / f"{number}.log").open("ab") as log:
            process = self._process = subprocess.Popen(
                ["bash", "-c", item["command"]],
                cwd=pack["directory"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that one signal reaches all of the job, and only it
            )
        try:
            write_json(marker, {"pid": process.pid, "host": os.uname().nodename, "began": began})
            reason = _wait(process, folder / f"{number}.withdrawn", item["limit_s"])
        finally:  # also when a signal handler raised through the wait
            self._stop()
        code = process.wait()
        self._process = None
        if code != 0:
            self.surroundings.end_leftovers()
        if reason == "withdrawn":
            return code
        if reason == "ended":
            if code == NOT_WRITTEN:
                self._leave(folder, number, "could not write its results")
            if code == UNFIT_HOST:
                self._leave_host(folder, number, item)
            if code in (INTERRUPTED, 128 + signal.SIGTERM, -signal.SIGTERM):
                self._leave_for_later(folder, number)
            if code < 0 or code > 128:
                time.sleep(1)  # if the allocation is ending, our own signal is on its way
        _settle(folder, number, {"code": code, "reason": reason, "began": began})
        return code

    def _leave_for_later(self, folder: Path, number: int) -> None:
        """A job was ended from outside: somebody may be about to take the nodes away.

        So nothing more is started, and the allocation is given back to begin anew later.
        """
        time.sleep(OUR_TURN_S)
        if self.surroundings.begin_anew():
            (folder / f"{number}.running.json").unlink(missing_ok=True)
            time.sleep(_REQUEUE_S)  # the end comes as SIGTERM
        self._leave(folder, number, "was ended from outside")

    def _leave_host(self, folder: Path, number: int, item: dict[str, Any]) -> None:
        """Nothing more is started where nothing can run."""
        host = self.surroundings.host()
        why = f"{item.get('name', 'a job')} found that nothing can run there"
        write_json(folder / "unfit.json", {"host": host, "why": why})
        self._leave(folder, number, f"cannot run on {host}")

    def _leave(self, folder: Path, number: int, why: str) -> None:
        """End the allocation; all that is not settled is wanted as if it had not begun."""
        (folder / f"{number}.running.json").unlink(missing_ok=True)
        raise SystemExit(f"job {number} {why}; it and the rest are left for later")

    def _stop(self) -> None:
        """End the running job and whatever it left behind in its session.

        A job that is ended from outside, by us or by others, gets time to clean up: its shell dies
        at once, what the shell has started may need longer.
        """
        process = self._process
        if process is None:
            return
        code = process.poll()
        if code is None or code < 0 or code > 128:
            _signal(process.pid, signal.SIGTERM)
            end = time.monotonic() + GRACE_S
            while time.monotonic() < end and _lives(process.pid):
                process.poll()
                time.sleep(0.05)
        _signal(process.pid, signal.SIGKILL)

    def _terminated(self, number: int, frame: Any) -> None:
        raise SystemExit(128 + number)


def _wait(process: subprocess.Popen[bytes], withdrawn: Path, limit_s: float) -> str:
    """Until the job ends, or has to; why it ends."""
    end = time.monotonic() + limit_s
    while True:
        left = end - time.monotonic()
        if left <= 0:
            return "time limit"
        if withdrawn.exists():
            return "withdrawn"
        try:
            process.wait(timeout=min(left, 2.0))
            return "ended"
        except subprocess.TimeoutExpired:
            continue


def _settle(folder: Path, number: int, how: dict[str, Any]) -> None:
    """Write down how a job ended.

    On a disk that is full only names can still change: that of the marker says what counts, and
    keeps the job from being repeated. One that failed may have failed of that, and stays wanted.
    """
    try:
        write_json(folder / f"{number}.settled.json", {**how, "ended": time.time()})
    except OSError:
        if how["code"] == 0:
            marker = folder / f"{number}.running.json"
            marker.replace(folder / f"{number}.settled-without-a-record")
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
