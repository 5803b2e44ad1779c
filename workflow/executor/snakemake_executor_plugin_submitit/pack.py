"""Runs inside the allocation: the jobs of one pack, one after another.

Only the standard library, and pickled by value: compute nodes need neither Snakemake nor this
package, and an edit of it does not touch what already waits in the queue.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

# shorter than Slurm's usual KillWait of 30 s, so that we are the ones who clean up
GRACE_S = 10.0


class Pack:
    """Runs the jobs that `pack.json` in its folder names; each is settled in a file of its own.

    Jobs that are settled already are skipped, so a restarted allocation goes on where it was.
    A job that ends because the allocation ends is not settled: it is still wanted.
    """

    def __init__(self, folder: str, max_restarts: int) -> None:
        self.folder = folder
        self.max_restarts = max_restarts
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        """Run what is not settled; returns how many jobs that were."""
        folder = Path(self.folder)
        restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        write_json(folder / "started.json", {"restarts": restarts, "host": os.uname().nodename})
        if restarts > self.max_restarts:
            raise RuntimeError(f"given up: restarted {restarts} times")
        # submitit lets SIGTERM pass unheeded; then our job would outlive a scancel
        signal.signal(signal.SIGTERM, self._terminated)
        pack: dict[str, Any] = json.loads((folder / "pack.json").read_text())
        ran = 0
        for number, item in enumerate(pack["items"]):
            if (folder / f"{number}.settled.json").exists():
                continue
            if (folder / f"{number}.withdrawn").exists():
                continue
            self._run(folder, number, item, pack)
            ran += 1
        return ran

    def checkpoint(self) -> Any:
        """Called by submitit when Slurm announces preemption or the end of the time limit."""
        from submitit.helpers import DelayedSubmission

        self._stop()
        return DelayedSubmission(Pack(self.folder, self.max_restarts))

    def _run(self, folder: Path, number: int, item: dict[str, Any], pack: dict[str, Any]) -> None:
        environment = {k: v for k, v in os.environ.items() if k != "SNAKEMAKE_PROFILE"}
        environment |= pack["environment"] | item["environment"]
        began = time.time()
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
        running = {"pid": process.pid, "host": os.uname().nodename, "began": began}
        write_json(folder / f"{number}.running.json", running)
        code, reason = self._wait(process, folder / f"{number}.withdrawn", item["limit_s"])
        self._process = None
        if code != 0:
            _end_steps()
            # died of a signal: if the allocation is ending, our own signal is on its way
            if code < 0 or code > 128:
                time.sleep(1)
        if reason == "withdrawn":
            return
        settled = {"code": code, "reason": reason, "began": began, "ended": time.time()}
        write_json(folder / f"{number}.settled.json", settled)

    def _wait(
        self, process: subprocess.Popen[bytes], withdrawn: Path, limit_s: float
    ) -> tuple[int, str]:
        end = time.monotonic() + limit_s
        reason = "ended"
        try:
            while True:
                left = end - time.monotonic()
                if left <= 0:
                    reason = "time limit"
                elif withdrawn.exists():
                    reason = "withdrawn"
                if reason != "ended":
                    break
                try:
                    process.wait(timeout=min(left, 2.0))
                    break
                except subprocess.TimeoutExpired:
                    continue
        finally:  # also when a signal handler raised through the wait
            self._stop()
        return process.wait(), reason

    def _stop(self) -> None:
        """End the running job and whatever it left behind in its session.

        A job that is ended from outside, by us or by Slurm, gets time to clean up: its shell dies
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


def _end_steps() -> None:
    """Cancel the srun steps a job left behind: those of a killed srun would live on."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None or shutil.which("squeue") is None:
        return
    listing = ["squeue", "--noheader", "--steps", "--jobs", job, "--format=%i"]
    try:
        steps = subprocess.run(listing, capture_output=True, text=True, timeout=30).stdout.split()
        numbered = [step for step in steps if step.rpartition(".")[2].isdigit()]
        if numbered:
            subprocess.run(["scancel", "--signal=KILL", *numbered], timeout=30)
    except subprocess.TimeoutExpired:
        # the log of the allocation
        print("could not ask Slurm for steps left behind: no answer", flush=True)  # noqa: T201


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write whole or not at all: whoever reads it sits on another machine."""
    part = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.part")
    part.write_text(json.dumps(value) + "\n")
    part.replace(path)
