"""The share of a host's processors that other processes took from ranks while they stepped."""

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

SHORTEST_S = 0.2  # the kernel counts ticks of 10 ms, so that less is off by more than 5 %


@dataclass(frozen=True, slots=True, kw_only=True)
class Processors:
    """A reading of the processors that this process may use; all but `cpus` in seconds.

    `queued`: this process wanted to run and did not, None where the kernel does not say.
    `limited`: the quota of this process, in processors, and what was used under it; else None.
    """

    cpus: tuple[int, ...]
    at: float
    own: float
    queued: float | None
    used: float  # by all processes of the host
    stolen: float  # by other virtual machines
    limited: tuple[float, float] | None

    @staticmethod
    def read(root: Path = Path("/")) -> "Processors":
        """The reading of now."""
        cpus = usable_cpus()
        times = psutil.cpu_times(percpu=True)
        here = [times[cpu] for cpu in cpus if cpu < len(times)]
        # without interrupts: those of the ranks' own messages count there too
        used = sum(one.user + getattr(one, "nice", 0.0) + one.system for one in here)
        return Processors(
            cpus=cpus,
            at=time.monotonic(),
            own=time.process_time(),
            queued=_queued(root),
            used=used,
            stolen=sum(getattr(one, "steal", 0.0) for one in here),
            limited=_limited(root),
        )

    def until_now(self, threads: int, root: Path = Path("/")) -> dict[str, Any]:
        """The use since this reading by a process that would keep so many threads busy."""
        now = Processors.read(root)
        limited = self.limited and now.limited
        return {
            "cpus": ",".join(map(str, self.cpus)),
            "cores": cores_of(self.cpus, root),
            "quota": limited and limited[0],
            "threads": threads,
            "seconds": now.at - self.at,
            "own": now.own - self.own,
            "queued": None if now.queued is None else now.queued - (self.queued or 0.0),
            "used": now.used - self.used,
            "stolen": now.stolen - self.stolen,
            "limited": limited and self.limited and limited[1] - self.limited[1],
        }


def others_share(uses: Iterable[tuple[str, dict[str, Any]]]) -> float | None:
    """The share that others took of the processors that ranks wanted, on the host with the most.

    Ranks that share processors are counted together. Others take nothing as long as they run on
    cores that the ranks leave free, or while the ranks only wait. None if nothing is known.

    Args:
        uses: by host what `Processors.until_now` says of each rank.
    """
    groups = defaultdict(list)
    for host, use in uses:
        if use["seconds"] >= SHORTEST_S:
            groups[host, use["cpus"]].append(use)
    return max(map(_taken, groups.values()), default=None)


def _taken(ranks: list[dict[str, Any]]) -> float:
    seconds = max(rank["seconds"] for rank in ranks)
    own = sum(rank["own"] for rank in ranks)
    threads = sum(rank["threads"] for rank in ranks)

    def from_ranks(used: float, cores: float) -> float:
        wanted = min(threads, cores)
        return float(max(0.0, (used - own) / seconds - (cores - wanted)) / wanted)

    cores, quota = ranks[0]["cores"], ranks[0]["quota"]
    shares = [from_ranks(max(rank["used"] for rank in ranks), cores)]
    if quota:
        shares.append(from_ranks(max(rank["limited"] for rank in ranks), min(cores, quota)))
    share, queued = max(shares), [rank["queued"] for rank in ranks]
    has_siblings = ranks[0]["cpus"].count(",") + 1 > cores  # which slow each other unqueued
    if not has_siblings and None not in queued:
        share = min(share, sum(queued) / max(own + sum(queued), 1e-9))
    stolen = max(rank["stolen"] for rank in ranks) / seconds / min(threads, cores)
    return float(min(1.0, share + stolen))


def _queued(root: Path) -> float | None:
    """Seconds that the threads of this process spent in queues of the scheduler."""
    waits = []
    for folder in (root / "proc/self/task").glob("*"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # a thread that ended
            waits.append(int((folder / "schedstat").read_text().split()[1]) / 1e9)
    return sum(waits) if waits else None


def usable_cpus() -> tuple[int, ...]:
    """The logical CPUs that this process may use: Slurm and containers may bind it to a few."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def cores_of(cpus: Iterable[int], root: Path = Path("/")) -> int:
    """The physical cores among logical CPUs, of which two may share one."""
    cores = set()
    for cpu in cpus:
        siblings = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        try:
            cores.add(siblings.read_text().strip())
        except OSError:
            cores.add(str(cpu))
    return len(cores)


def _limited(root: Path) -> tuple[float, float] | None:
    """The smallest quota of processors that cgroups (v2) set, and the seconds used under it."""
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
        inside = next((line[3:] for line in lines if line.startswith("0::")), "/")
        top = root / "sys/fs/cgroup"
        for folder in (top / inside.strip("/"), *(top / inside.strip("/")).parents):
            if not folder.is_relative_to(top) or not (folder / "cpu.max").exists():
                continue
            most, period = (folder / "cpu.max").read_text().split()
            if most != "max":
                stated = dict(
                    line.split() for line in (folder / "cpu.stat").read_text().splitlines()
                )
                found.append((int(most) / int(period), int(stated["usage_usec"]) / 1e6))
    return min(found, default=None)
