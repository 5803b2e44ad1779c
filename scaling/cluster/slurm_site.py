"""What this site's Slurm says of itself: partitions, GPUs, accounts. For `scaling new` only."""

import getpass
import re
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass

# sinfo's letters: partition (* at the default), nodes, GRES, CPUs and MB of a node, time limit
SINFO = ("sinfo", "--noheader", "--format=%P|%D|%G|%c|%m|%l")
_GPU = re.compile(r"gpu:(?:(?P<type>[^:(,]+):)?(?P<count>\d+)")

Ask = Callable[[tuple[str, ...]], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition whose nodes are alike; where they are not, its most frequent kind."""

    name: str
    default: bool
    nodes: int
    cpus_per_node: int
    gpus_per_node: int  # 0: it has none
    gpu_type: str | None  # as the site spells it: "h100"; None where it does not say
    time_limit: str  # of a job, in Slurm's words: "1-00:00:00", "infinite"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSite:
    """What `sinfo` and `sacctmgr` answered."""

    partitions: tuple[Partition, ...]
    accounts: tuple[str, ...]  # the user's own; the default one first
    qos: tuple[str, ...]

    @property
    def best(self) -> Partition:
        """Where a sweep would run: GPUs before none, the default partition, the most GPUs."""
        return max(
            self.partitions,
            key=lambda p: (p.gpus_per_node > 0, p.default, p.nodes * p.gpus_per_node, p.nodes),
        )


def parse_partitions(text: str) -> tuple[Partition, ...]:
    """Partitions from the answer of `SINFO`, one line per kind of node."""
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
        max(alike, key=lambda kind: (kind.gpus_per_node > 0, kind.nodes))
        for alike in kinds.values()
    )


def query_slurm(ask: Ask | None = None) -> SlurmSite | None:
    """What the Slurm of this machine says; None where there is none, or it does not answer."""
    ask = ask or _answer
    nodes = ask(SINFO)
    partitions = parse_partitions(nodes or "")
    if not partitions:
        return None
    user = getpass.getuser()
    default = ask(("sacctmgr", "-nP", "show", "user", user, "format=defaultaccount")) or ""
    lines = ask(("sacctmgr", "-nP", "show", "assoc", f"user={user}", "format=account,qos")) or ""
    pairs = [line.split("|") for line in lines.splitlines() if "|" in line]
    return SlurmSite(
        partitions=partitions,
        accounts=_unique([*default.split(), *(account for account, _ in pairs)]),
        qos=_unique(name for _, names in pairs for name in names.split(",")),
    )


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name))


def _answer(command: tuple[str, ...]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20.0)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
