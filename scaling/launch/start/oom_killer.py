"""Whether the kernel's out-of-memory killer has struck where this process lives.

Ranks may have a memory cgroup that their launcher is not in (each step of a Slurm allocation), so
whoever stands beside a rank counts: its parent on this machine, its host, or the shell around it.
"""

import subprocess
from pathlib import Path

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


def oom_kills(root: Path | None = None) -> int:
    """Processes killed so far in this cgroup, or on the whole machine where it keeps no count.

    Only the rise of the count between two calls means something; 0 where the kernel tells nothing.
    """
    command = ["bash", "-c", f'{OOM_KILLS}oom_kills "$0"', "" if root is None else str(root)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(answer.stdout or 0)
