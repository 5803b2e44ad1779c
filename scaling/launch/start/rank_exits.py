"""Learn how ranks ended from files that a shell around each rank leaves.

The shell writes `<folder>/<rank>`, atomically: the exit code, and how many processes the kernel's
out-of-memory killer has ended there meanwhile. All it needs is a folder that all nodes see.
"""

import contextlib
import os
import re
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from subprocess import DEVNULL

from scaling.launch.start.starter import RankExit, spawn, wait_until

_LISTING_LAG_S = 5.0  # until a shared file system lists a new file
_EXIT_S = 20.0
# A line of a log that is an error: it names an exception, or has a word of a program or a shell.
_ERROR = re.compile(
    r"^(?!.*[Ww]arn).*(?:[A-Za-z](?:Error|Exception)\b|(?i:\b(?:error|fatal|panic|abort(?:ed)?|killed"
    r"|segmentation fault|core dumped|terminate called|not found|no such file|permission denied"
    r"|cannot|failed)\b))"
)

# Kills by the kernel's out-of-memory killer are counted beside the rank (by its parent on this
# machine, its fork server, or the shell around it), as a step of a Slurm allocation has a memory
# cgroup that the launcher is not in. In shell, as a Python around each rank would start slowly.
# The argument is the folder that stands for /. cgroup v2 counts in memory.events (descendants
# included), v1 in memory.oom_control, the whole machine in /proc/vmstat. Lines of /proc/self/cgroup
# are `id:controllers:path`; v2 has id 0 and no controllers. In a container the path may be the
# host's, while the mount shows the container's cgroup as the root.
OOM_KILLS = r"""
oom_kills() {
  new=$(sed -n 's|^0::/||p' "$1/proc/self/cgroup" 2> /dev/null)
  old=$(sed -n 's|^[0-9]*:\([^:]*,\)*memory\(,[^:]*\)*:/||p' "$1/proc/self/cgroup" 2> /dev/null)
  at=$1/sys/fs/cgroup
  cat "$at/$new/memory.events" "$at/memory.events" "$at/memory/$old/memory.oom_control" \
    "$at/memory/memory.oom_control" "$1/proc/vmstat" 2> /dev/null |
    sed -n 's/^oom_kill //p' | head -n 1
}
"""

# Shell code before and after a rank. It needs $folder and $RANK, and afterwards $code.
SHELL_BEFORE_RANK = f"""{OOM_KILLS}
before=$(oom_kills "")
"""
SHELL_AFTER_RANK = """\
kills=0
[ $code != 137 ] || kills=$(($(oom_kills "") + 0 - before))
echo $code $kills > "$folder/.$RANK"
mv "$folder/.$RANK" "$folder/$RANK"
"""


class ShellRanks(ABC):
    """Ranks observed through shell processes that run `per_shell` of them each, and a folder.

    Subclasses define how a signal reaches the ranks.
    """

    def __init__(self, folder: Path, per_shell: int) -> None:
        self._folder = folder
        self._per_shell = per_shell
        self._shells: list[subprocess.Popen[bytes]] = []
        self._silent_since: float | None = None

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        stdin: int = DEVNULL,
        preexec_fn: Callable[[], None] | None = None,
    ) -> None:
        """Start the next process and its ranks.

        Raises:
            OSError: the program is missing.
        """
        log = self._log(len(self._shells))
        self._shells.append(spawn(command, environment, log, stdin=stdin, preexec_fn=preexec_fn))

    def wait_for_start(self, mark: Callable[[int], str], limit_s: float) -> int | None:
        """Wait until each process has started ranks; the number of the first that did not in time.

        `mark` names the file that the first rank of each process leaves.
        """
        end = time.monotonic() + limit_s
        for number, shell in enumerate(self._shells):
            marked, runs = partial(self._has, mark(number)), lambda of=shell: of.poll() is None
            if not wait_until(marked, end - time.monotonic(), runs):
                return number
        return None

    def exits(self) -> dict[int, RankExit]:
        """See `Ranks`. A rank that left no file shares the exit code of its shell process."""
        ends = {
            int(path.name): _end(path.read_text())
            for path in self._folder.iterdir()
            if path.name.isdigit()
        }
        lost: dict[int, RankExit] = {}
        for number, shell in enumerate(self._shells):
            if (code := shell.poll()) is not None:
                ranks = range(number * self._per_shell, (number + 1) * self._per_shell)
                # never 0, which would mean success
                end = RankExit(exit_code_from_shell(code) or 1, self._ran_out_of_memory(number))
                lost |= {rank: end for rank in ranks if rank not in ends}
        if lost and self._silent_since is None:
            self._silent_since = time.monotonic()
        # wait for files that a shared file system does not list yet
        surely_lost = lost and time.monotonic() - (self._silent_since or 0.0) >= _LISTING_LAG_S
        return {**lost, **ends} if surely_lost else ends

    def _ran_out_of_memory(self, number: int) -> bool:
        """Whether one of the shell processes said so, which then left no file."""
        return False

    @abstractmethod
    def signal(self, number: int) -> None:
        """See `Ranks`; after SIGKILL the shell processes end too. Does not wait."""

    def kill(self) -> None:
        """See `Ranks`."""
        self.signal(signal.SIGKILL)
        end = time.monotonic() + _EXIT_S
        for shell in self._shells:
            try:
                shell.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:  # it may wait for a lost node
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()

    def last_words(self, number: int = 0) -> str:
        """The last line that one of the shell processes printed."""
        return last_line(self._log(number)) or f"exit code {self._shells[number].poll()}"

    def _log(self, number: int) -> Path:
        return self._folder / f"shell{number}.log"

    def _has(self, name: str) -> bool:
        """Whether the file exists and has content."""
        path = self._folder / name
        return path.exists() and path.stat().st_size > 0


def _end(text: str) -> RankExit:
    code, kills = text.split()
    return RankExit(exit_code_from_shell(int(code)), out_of_memory=int(kills) > 0)


def exit_code_from_shell(code: int) -> int:
    """Turn the shell's 128 + n, for a process ended by signal n (up to 64), into -n."""
    return 128 - code if 128 < code <= 192 else code


def last_line(log: Path, pattern: re.Pattern[str] = re.compile("")) -> str | None:
    """The last line of a log that is not blank and has the pattern, or None."""
    if not log.exists():
        return None
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if pattern.search(line)), None)


def last_error(log: Path) -> str | None:
    """The last line of a log that is an error, or None."""
    return last_line(log, _ERROR)


def oom_kills(root: Path | None = None) -> int:
    """The number of processes that ran out of memory in this cgroup, else on the whole machine.

    Only the rise between two calls means something. 0 where the kernel does not tell.
    """
    command = ["bash", "-c", f'{OOM_KILLS}oom_kills "$0"', "" if root is None else str(root)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(answer.stdout or 0)
