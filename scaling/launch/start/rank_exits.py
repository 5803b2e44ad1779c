"""What the shell around a rank leaves behind: how the rank ended, in a file of its own.

The shell writes `<folder>/<rank>`, beside and renamed: the exit code, and how many processes the
kernel's out-of-memory killer has ended there meanwhile. A folder that all nodes see is all that is
needed; nothing is asked over the network.
"""

import contextlib
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from subprocess import DEVNULL

from scaling.launch.start.starter import End, spawn, wait_until

_LISTING_LAG_S = 5.0  # of a shared file system
_PARTING_S = 20.0

# Ranks may have a memory cgroup that their launcher is not in (each step of a Slurm allocation), so
# whoever stands beside a rank counts what the kernel's out-of-memory killer has struck: its parent
# on this machine, its host, or the shell around it.
# In shell, as one counts around a rank: Python would cost each rank a start. Its argument is the
# folder that stands for /. cgroup v2 counts in memory.events (descendants included), v1 in
# memory.oom_control, the machine in /proc/vmstat; lines of /proc/self/cgroup are
# `id:controllers:path`, v2 has the id 0 and no controllers. In a container the path may be the
# host's, while the mount shows its own cgroup as the root.
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

# Shell before a rank, and after it: its code is in $code, its number in $RANK, and $folder.
BEFORE = f"""{OOM_KILLS}
before=$(oom_kills "")
"""
AFTER = """\
kills=0
[ $code != 137 ] || kills=$(($(oom_kills "") + 0 - before))
echo $code $kills > "$folder/.$RANK"
mv "$folder/.$RANK" "$folder/$RANK"
"""


class ShellRanks(ABC):
    """Ranks seen through the processes that hold `per_shell` of them each, and the folder.

    Who starts ranks this way says how a signal reaches them.
    """

    def __init__(self, folder: Path, per_shell: int) -> None:
        self._folder = folder
        self._per_shell = per_shell
        self._shells: list[subprocess.Popen[bytes]] = []
        self._silent_since: float | None = None

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], stdin: int = DEVNULL
    ) -> None:
        """Start the next ranks.

        Raises:
            OSError: there is no such program.
        """
        log = self._log(len(self._shells))
        self._shells.append(spawn(command, environment, log, stdin=stdin))

    def wait_for_start(self, mark: Callable[[int], str], limit_s: float) -> int | None:
        """The first of these processes that starts no ranks in time, None once each of them has.

        `mark` names the file that the first rank of each leaves.
        """
        end = time.monotonic() + limit_s
        for number, shell in enumerate(self._shells):
            there, runs = partial(self._has, mark(number)), lambda of=shell: of.poll() is None
            if not wait_until(there, end - time.monotonic(), runs):
                return number
        return None

    def exits(self) -> dict[int, End]:
        """See `Ranks`. A rank that could not say how it ended shares its process's exit code."""
        ends = {
            int(path.name): _end(path.read_text())
            for path in self._folder.iterdir()
            if path.name.isdigit()
        }
        lost: dict[int, End] = {}
        for number, shell in enumerate(self._shells):
            if (code := shell.poll()) is not None:
                ranks = range(number * self._per_shell, (number + 1) * self._per_shell)
                # 0 would say that all is well
                lost |= {rank: End(signed(code) or 1) for rank in ranks if rank not in ends}
        if lost and self._silent_since is None:
            self._silent_since = time.monotonic()
        # by then a shared file system has shown what they said
        shown = lost and time.monotonic() - (self._silent_since or 0.0) >= _LISTING_LAG_S
        return {**lost, **ends} if shown else ends

    @abstractmethod
    def signal(self, number: int) -> None:
        """See `Ranks`; after SIGKILL these processes end too. No waiting."""

    def kill(self) -> None:
        """See `Ranks`."""
        self.signal(signal.SIGKILL)
        end = time.monotonic() + _PARTING_S
        for shell in self._shells:
            try:
                shell.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:  # it may wait for a node that is gone
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()

    def last_words(self, number: int = 0) -> str:
        """The last line that one of these processes printed."""
        return last_line(self._log(number)) or f"exit code {self._shells[number].poll()}"

    def _log(self, number: int) -> Path:
        return self._folder / f"shell{number}.log"

    def _has(self, name: str) -> bool:
        """Whether a file is there, and written."""
        path = self._folder / name
        return path.exists() and path.stat().st_size > 0


def _end(text: str) -> End:
    code, kills = text.split()
    return End(signed(int(code)), out_of_memory=int(kills) > 0)


def signed(code: int) -> int:
    """A shell says 128 + n of what signal n has ended; there are 64."""
    return 128 - code if 128 < code <= 192 else code


def last_line(log: Path) -> str | None:
    """The last line in a log that is not blank; None too where there is no log."""
    if not log.exists():
        return None
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else None


def oom_kills(root: Path | None = None) -> int:
    """Processes killed so far in this cgroup, or on the whole machine where it keeps no count.

    Only the rise of the count between two calls means something; 0 where the kernel tells nothing.
    """
    command = ["bash", "-c", f'{OOM_KILLS}oom_kills "$0"', "" if root is None else str(root)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(answer.stdout or 0)
