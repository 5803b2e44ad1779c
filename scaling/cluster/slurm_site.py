"""Ask this site's Slurm for partitions, GPUs, limits and accounts. For `scaling new` only."""

import getpass
import os
import re
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

# partition (* marks the default), nodes, GRES, CPUs and MB per node, time limit
SINFO = ("sinfo", "--noheader", "--format=%P|%D|%G|%c|%m|%l")
_GPU = re.compile(r"gpu:(?:(?P<type>[^:(,]+):)?(?P<count>\d+)")
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?:(?P<hours>\d+):)?(?P<minutes>\d+):(?P<seconds>\d+)")

Run = Callable[[tuple[str, ...]], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """The nodes of a partition that have the same GPUs."""

    partition: str
    default: bool  # whether it is the default partition
    nodes: int
    cpus_per_node: int  # of the smallest node
    memory_mb: int  # of a node, the smallest
    gpus_per_node: int
    gpu_type: str | None  # as the site spells it: "h100"; None if it does not name it
    max_minutes: int | None  # of a job; None: no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSite:
    """The answers of `sinfo`, `scontrol` and `sacctmgr`."""

    kinds: tuple[NodeKind, ...]
    accounts: tuple[str, ...] = ()  # of the user, the default account first
    qos: tuple[str, ...] = ()
    max_submit_jobs: int | None = None  # of the user at once; None: no limit is known
    default_memory: str | None = None  # of a job that asks for none: "DefMemPerCPU=512"

    @property
    def best(self) -> NodeKind:
        """The nodes to suggest: with GPUs, else of the default partition, else most GPUs."""
        return max(
            self.kinds,
            key=lambda k: (k.gpus_per_node > 0, k.default, k.nodes * k.gpus_per_node, k.nodes),
        )

    @property
    def measurable(self) -> list[NodeKind]:
        """The best nodes, then all others with GPUs."""
        others = [kind for kind in self.kinds if kind.gpus_per_node and kind is not self.best]
        return [self.best, *others]


def minutes_of(text: str) -> int | None:
    """The minutes of a time limit such as `1-00:00:00` or `30:00`; None if there is no limit."""
    time = _TIME.fullmatch(text)
    if time is None:
        return None
    days, hours, minutes = (int(time[name] or 0) for name in ("days", "hours", "minutes"))
    return 1440 * days + 60 * hours + minutes


def parse_kinds(text: str) -> tuple[NodeKind, ...]:
    """Parse the output of `SINFO`, which has a line for each configuration of nodes."""
    kinds: dict[tuple[object, ...], NodeKind] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != 6 or not cells[1].isdigit():
            continue
        gpu = _GPU.search(cells[2])
        kind = NodeKind(
            partition=cells[0].rstrip("*"),
            default=cells[0].endswith("*"),
            nodes=int(cells[1]),
            cpus_per_node=int(cells[3].rstrip("+") or 0),
            memory_mb=int(cells[4].rstrip("+") or 0),
            gpus_per_node=int(gpu["count"]) if gpu else 0,
            gpu_type=gpu["type"] if gpu else None,
            max_minutes=minutes_of(cells[5]),
        )
        same = kinds.setdefault((kind.partition, kind.gpu_type, kind.gpus_per_node), kind)
        if same is not kind:
            kinds[(kind.partition, kind.gpu_type, kind.gpus_per_node)] = replace(
                same,
                nodes=same.nodes + kind.nodes,
                cpus_per_node=min(same.cpus_per_node, kind.cpus_per_node),
                memory_mb=min(same.memory_mb, kind.memory_mb),
            )
    return tuple(kinds.values())


def query_slurm(run: Run | None = None) -> SlurmSite | None:
    """The report of this machine's Slurm; None without one or if it does not answer."""
    run = run or _output
    kinds = parse_kinds(run(SINFO) or "")
    if not kinds:
        return None
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    default = run(("sacctmgr", "-nP", "show", "user", user, "format=defaultaccount")) or ""
    fields = "format=account,qos,defaultqos,maxsubmitjobs"
    lines = run(("sacctmgr", "-nP", "show", "assoc", f"user={user}", fields)) or ""
    rows = [line.split("|") for line in lines.splitlines() if line.count("|") == 3]
    qos = _unique(name for _, names, _, _ in rows for name in names.split(","))
    used = {name for _, names, default_qos, _ in rows for name in [default_qos or names]}
    limits = run(("sacctmgr", "-nP", "show", "qos", "format=name,maxsubmitjobsperuser")) or ""
    most = [limit for _, _, _, limit in rows]
    parts = (line.partition("|") for line in limits.splitlines())
    most += [limit for name, _, limit in parts if name in used]
    memory = re.search(r"^(DefMemPer\w+) *= (\d+)", run(("scontrol", "show", "config")) or "", re.M)
    return SlurmSite(
        kinds=kinds,
        accounts=_unique([*default.split(), *(account for account, *_ in rows)]),
        qos=qos,
        max_submit_jobs=min((int(limit) for limit in most if limit.isdigit()), default=None),
        default_memory=f"{memory[1]}={memory[2]}" if memory else None,
    )


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name))


def _output(command: tuple[str, ...]) -> str | None:
    """The output of a command; None if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20.0)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
