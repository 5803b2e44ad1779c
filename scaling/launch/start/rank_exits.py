"""Learn how ranks ended: from their logs, the kernel and the shells around ranks of a Slurm step.

Such a shell writes `<folder>/<rank>` atomically: the exit code, and how many processes the kernel's
out-of-memory killer has ended there meanwhile.
"""

import re
import subprocess
from pathlib import Path

from scaling.record.rank_files import RankExit

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


def end_of(text: str) -> RankExit:
    """How a rank ended, by the file that its shell has left."""
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
