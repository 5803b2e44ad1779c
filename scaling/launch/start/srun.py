"""Ranks as one step of a Slurm allocation: srun places them, a shell stands around each."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from scaling.launch.start import slurm
from scaling.launch.start.rank_exits import AFTER, BEFORE, RankExits, last_line, signed
from scaling.launch.start.starter import End, LaunchError, Placement, Ranks

_LAUNCHES = 3  # a step that Slurm fails to create is tried again
_LAUNCH_PAUSE_S = 5.0
_LAUNCH_LIMIT_S = 300.0
_POLL_S = 0.05

# $1: where to say how the rank ended; then its command. Slurm sends every signal to the shell too,
# which stays to say what became of its rank: USR1 asks ranks for their stacks, and the others end
# those that set no handler.
_RANK_SHELL = f"""\
trap '' USR1
trap : TERM INT HUP USR2
export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID MASTER_ADDR=$SLURMD_NODENAME
folder=$1
shift
[ "$RANK" != 0 ] || echo "$SLURM_JOB_ID.$SLURM_STEP_ID" > "$folder/step"
{BEFORE}
"$@"
code=$?
{AFTER}exit $code
"""


def start_step(
    command: Sequence[str], point: Placement, environment: Mapping[str, str], logs: Path
) -> Ranks:
    """Start all ranks as one step of this allocation, and wait until the first of them runs.

    Raises:
        LaunchError: Slurm could not create the step, several times; its text is what srun printed.
    """
    world_size = point.world_size
    of_rank = {
        **environment,
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(min(world_size, point.gpus_per_node)),
    }
    srun = slurm.ranks_command(point, environment, logs)
    for attempt in range(_LAUNCHES):
        if attempt:
            time.sleep(_LAUNCH_PAUSE_S)
        folder = Path(tempfile.mkdtemp(prefix=".run-step-", dir=logs))
        step = StepRanks(
            [*srun, "bash", "-c", _RANK_SHELL, "rank", str(folder), *command],
            of_rank,
            folder,
        )
        try:
            started = step.wait_for_start(_LAUNCH_LIMIT_S)
        except BaseException:
            step.kill()
            raise
        if started:
            return step
        step.kill()
    raise LaunchError(f"srun failed {_LAUNCHES} times: {step.last_words()}")


class StepRanks:
    """The ranks of one step, seen through srun and the files their shells leave."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        self._folder = folder
        self._world_size = int(environment["WORLD_SIZE"])
        self._exits = RankExits(folder)
        with (folder / "srun.log").open("wb") as log:
            self._srun = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_for_start(self, limit_s: float) -> bool:
        """Whether the first rank runs, or has run, within so many seconds."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            if self._step() is not None:
                return True
            if self._srun.poll() is not None:
                time.sleep(_POLL_S)
                return self._step() is not None
            time.sleep(_POLL_S)
        return False

    def exits(self) -> dict[int, End]:
        """See `Ranks`. A rank that could not say how it ended shares srun's own exit code."""
        rest: dict[int, End] = {}
        if (code := self._srun.poll()) is not None:
            rest = self._exits.without_a_word(range(self._world_size), End(signed(code)))
        return {**rest, **self._exits.ends()}

    def dump_stacks(self) -> None:
        """See `Ranks`."""
        self._signal("USR1")

    def kill(self) -> None:
        """See `Ranks`."""
        if self._srun.poll() is None:
            self._signal("KILL")
            try:
                self._srun.wait(timeout=20)
            except subprocess.TimeoutExpired:
                # it may wait for a node that is gone
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._srun.pid, signal.SIGKILL)
                self._srun.wait()

    def last_words(self) -> str:
        """The last line that srun printed."""
        return last_line(self._folder / "srun.log") or f"exit code {self._srun.poll()}"

    def _step(self) -> str | None:
        try:
            return (self._folder / "step").read_text().strip() or None
        except FileNotFoundError:
            return None

    def _signal(self, name: str) -> None:
        step = self._step()
        if step is None:  # not placed yet: srun gives its request up
            self._srun.terminate()
            return
        slurm.signal_step(step, name)
