"""Jobs that are wanted, and the allocations in flight that hold them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .ledger import Item
from .request import Request


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wish:
    """A job that Snakemake wants run: what it asks for, what runs, what it leaves behind."""

    request: Request
    item: Item
    outputs: tuple[Path, ...]
    job: Any = None  # Snakemake's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How wishes are packed and how many allocations may be in flight; see the settings."""

    pack: int = 1
    pack_minutes: int | None = None
    array: bool = False
    max_allocations: int | None = None
    latency_s: float = 5.0  # until a file written elsewhere must be visible
    whole_outputs: bool = False  # an output that is there is finished, whoever says what


@dataclass(slots=True, kw_only=True, eq=False)
class Allocation:
    """One job of the scheduler, and those of its pack that are waited for, by number.

    `identity` is what the scheduler calls it, None while it is being submitted. `ended_s` is the
    monotonic time at which it was first seen to have ended, None while it lives.
    """

    folder: Path
    identity: Mapping[str, Any] | None
    gpus: list[int] = field(default_factory=list)
    waited_for: dict[int, Wish] = field(default_factory=dict)
    reattached: bool = False
    ended_s: float | None = None
    warned: bool = False

    @property
    def job(self) -> str:
        """The scheduler's id."""
        return "(not submitted)" if self.identity is None else str(self.identity["job"])


class Allocations:
    """Those in flight, and the GPUs of this machine that are free (cluster=local)."""

    def __init__(self, *, most: int | None, gpus: int) -> None:
        self._most = most
        self._by_folder: dict[Path, Allocation] = {}
        self._just_ended: set[Path] = set()  # since the last poll began
        self._failed_in: dict[str, Path] = {}  # by job, where it failed last
        self._free_gpus = list(range(gpus))

    def __iter__(self) -> Iterator[Allocation]:
        return iter(list(self._by_folder.values()))

    def __len__(self) -> int:
        return len(self._by_folder)

    def get(self, folder: Path) -> Allocation | None:
        """The allocation of this folder, if it is in flight."""
        return self._by_folder.get(folder)

    def add(self, allocation: Allocation, *, gpus: int = 0) -> None:
        """Put an allocation in flight, on so many of the free GPUs of this machine."""
        allocation.gpus, self._free_gpus = self._free_gpus[:gpus], self._free_gpus[gpus:]
        self._by_folder[allocation.folder] = allocation

    def close(self, allocation: Allocation) -> None:
        """Nobody waits for it any more; its GPUs are free again."""
        del self._by_folder[allocation.folder]
        self._just_ended.add(allocation.folder)
        self._free_gpus = sorted([*self._free_gpus, *allocation.gpus])

    def poll_begins(self) -> None:
        """What has ended until now may be repeated."""
        self._just_ended.clear()

    def failed(self, wish: Wish, allocation: Allocation) -> None:
        """A job has failed there."""
        self._failed_in[wish.item.key] = allocation.folder

    def holds_back(self, wish: Wish) -> bool:
        """Whether the pack in which it failed runs on: those to be repeated are sent together."""
        folder = self._failed_in.get(wish.item.key)
        return folder in self._by_folder or folder in self._just_ended

    def room(self, gpus_each: int) -> int | None:
        """How many more allocations may start now, each on so many GPUs; None: no limit."""
        limits = []
        if self._most is not None:
            limits.append(max(0, self._most - len(self)))
        if gpus_each:
            limits.append(len(self._free_gpus) // gpus_each)
        return min(limits, default=None)
