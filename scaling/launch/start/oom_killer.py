"""Whether the kernel's out-of-memory killer has struck where this process lives.

Ranks may have a memory cgroup that their launcher is not in (each step of a Slurm allocation), so
whoever stands beside a rank counts: its parent on this machine, its host, or the shell around it.
"""

from pathlib import Path

# The same in shell: the function `oom_kills`, with the folder that stands for / as its argument.
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


def oom_kills(root: Path = Path("/")) -> int:
    """Processes killed so far in this cgroup, or on the whole machine where it keeps no count.

    Only the rise of the count between two calls means something; 0 where the kernel tells
    nothing. cgroup v2 counts in memory.events (descendants included), v1 in memory.oom_control,
    the machine in /proc/vmstat.
    """
    for path in (*_cgroup_files(root), root / "proc/vmstat"):
        try:
            text = path.read_text()
        except OSError:  # not mounted, not ours to read
            continue
        for line in text.splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def _cgroup_files(root: Path) -> list[Path]:
    """Lines of /proc/self/cgroup are `id:controllers:path`; v2 has the id 0 and no controllers.

    In a container the path may be the host's, while the mount shows its own cgroup as the root.
    """
    mount = root / "sys/fs/cgroup"
    files = []
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            base, name = mount, "memory.events"
        elif "memory" in controllers.split(","):
            base, name = mount / "memory", "memory.oom_control"
        else:
            continue
        files += [base / path.lstrip("/") / name, base / name]
    return files
