"""Ranks as one step of a Slurm allocation: srun places them, a shell stands around each."""

import tempfile
import time
from pathlib import Path

from scaling.launch.start import slurm
from scaling.launch.start.rank_exits import AFTER, BEFORE, ShellRanks
from scaling.launch.start.starter import Launch, LaunchError, Ranks, all_or_none

_LAUNCHES = 3  # a step that Slurm fails to create is tried again
_LAUNCH_PAUSE_S = 5.0
_LAUNCH_LIMIT_S = 300.0
_STEP = "step"  # the file in which rank 0 says what Slurm calls the step

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


def start_step(launch: Launch) -> Ranks:
    """Start all ranks as one step of this allocation, and wait until the first of them runs.

    Raises:
        LaunchError: Slurm could not create the step, several times; its text is what srun printed.
    """
    of_rank = {
        **launch.environment,
        "WORLD_SIZE": str(launch.world_size),
        "LOCAL_WORLD_SIZE": str(launch.per_node),
    }
    shell = [*slurm.ranks_command(launch), "bash", "-c", _RANK_SHELL, "rank"]
    for attempt in range(_LAUNCHES):
        if attempt:
            time.sleep(_LAUNCH_PAUSE_S)
        folder = Path(tempfile.mkdtemp(prefix=".run-step-", dir=launch.logs))
        step = StepRanks(folder, launch.world_size)
        with all_or_none(step):
            step.start([*shell, str(folder), *launch.command], of_rank)
            failed = step.wait_for_start(lambda _: _STEP, _LAUNCH_LIMIT_S)
        if failed is None:
            return step
        step.kill()
    raise LaunchError(f"srun failed {_LAUNCHES} times: {step.last_words()}")


class StepRanks(ShellRanks):
    """The ranks of one step, seen through one srun."""

    def signal(self, number: int) -> None:
        """See `ShellRanks`."""
        for srun in self._shells:
            if srun.poll() is not None:
                continue
            if self._has(_STEP):
                slurm.signal_step((self._folder / _STEP).read_text().strip(), number)
            else:  # not placed yet: srun gives its request up
                srun.terminate()
