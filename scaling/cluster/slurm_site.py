"""Ask this site's Slurm for partitions, GPUs and accounts. For `scaling new` only."""

import getpass
import os
import re
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass

# partition (* marks the default), nodes, GRES, CPUs and MB per node, time limit
SINFO = ("sinfo", "--noheader", "--format=%P|%D|%G|%c|%m|%l")
_GPU = re.compile(r"gpu:(?:(?P<type>[^:(,]+):)?(?P<count>\d+)")

Run = Callable[[tuple[str, ...]], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition, described by its most frequent kind of node."""

    name: str
    default: bool
    nodes: int
    cpus_per_node: int
    gpus_per_node: int
    gpu_type: str | None  # as the site spells it: "h100"; None if it does not name it
    time_limit: str  # of a job, as Slurm writes it: "1-00:00:00", "infinite"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSite:
    """The answers of `sinfo` and `sacctmgr`."""

    partitions: tuple[Partition, ...]
    accounts: tuple[str, ...]  # of the user, the default account first
    qos: tuple[str, ...]

    @property
    def best(self) -> Partition:
        """The partition to suggest: with GPUs, else the default, else the one with most GPUs."""
        return max(
            self.partitions,
            key=lambda p: (p.gpus_per_node > 0, p.default, p.nodes * p.gpus_per_node, p.nodes),
        )


def parse_partitions(text: str) -> tuple[Partition, ...]:
    """Parse the output of `SINFO`, one line per partition and kind of node."""
    kinds: dict[str, list[Partition]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != 6 or not cells[1].isdigit():
            continue
        gpu = _GPU.search(cells[2])
        kind = Partition(
            name=cells[0].rstrip("*"),
            default=cells[0].endswith("*"),
            nodes=int(cells[1]),
            cpus_per_node=int(cells[3].rstrip("+") or 0),
            gpus_per_node=int(gpu["count"]) if gpu else 0,
            gpu_type=gpu["type"] if gpu else None,
            time_limit=cells[5],
        )
        kinds.setdefault(kind.name, []).append(kind)
    return tuple(
        max(of_partition, key=lambda kind: (kind.gpus_per_node > 0, kind.nodes))
        for of_partition in kinds.values()
    )


def query_slurm(run: Run | None = None) -> SlurmSite | None:
    """The report of this machine's Slurm; None without one or if it does not answer."""
    run = run or _output
    partitions = parse_partitions(run(SINFO) or "")
    if not partitions:
        return None
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    default = run(("sacctmgr", "-nP", "show", "user", user, "format=defaultaccount")) or ""
    lines = run(("sacctmgr", "-nP", "show", "assoc", f"user={user}", "format=account,qos")) or ""
    pairs = [line.split("|") for line in lines.splitlines() if "|" in line]
    return SlurmSite(
        partitions=partitions,
        accounts=_unique([*default.split(), *(account for account, _ in pairs)]),
        qos=_unique(name for _, names in pairs for name in names.split(",")),
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
