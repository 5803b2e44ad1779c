"""Track a rank's memory allocation by allocation: peaks by phase, and the code that holds them."""

import contextlib
import functools
import math
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from scaling.layout.engines import ENGINES

PHASES = ("build", "forward", "backward", "optimizer")

_BLOCK = 512  # bytes; torch's CUDA allocator hands out multiples of it
_DEVICE_OF = torch.ops.prim.device.default
# Packages whose code explains an allocation; of torch's own those of its engine.
_EXPLAINING = ({"scaling", *ENGINES} - {"torch"}, {"optim", "fsdp", "pipelining"})
_WRAPPERS = ("memory_record", "rehearsal", "standins", "waits")  # modules that explain nothing


class Allocation(NamedTuple):
    """A storage: the code and the phase that made it, and its bytes."""

    made_by: str
    phase: str
    size: int


class MemoryRecord(TorchDispatchMode):
    """Records each storage when an operator first returns it and when it is freed.

    It sees tensors only, neither NCCL's memory nor a kernel's workspace. A tensor that a side
    stream still uses counts as freed at once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase = PHASES[0]
        self.part = ""  # of a backward
        self._paused = False
        self._live: dict[int, Allocation] = {}  # by storage
        # phase, part, and an allocation that was made (1) or freed (-1)
        self._entries: list[tuple[str, str, Allocation, int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operator, then record what it returns."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # a DTensor calls the same operator on its local tensor
        if func is _DEVICE_OF and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # more than half of all calls, none of which makes a tensor
        out = func(*args, **(kwargs or {}))
        if self._paused:
            return out
        for leaf in (out,) if isinstance(out, Tensor) else tree_leaves(out):
            if isinstance(leaf, Tensor) and _device_of(leaf).type != "meta":
                storage = leaf.untyped_storage()
                if storage._cdata not in self._live and storage.nbytes():
                    self._record(storage, func.overloadpacket.__name__)
                    weakref.finalize(storage, self._record_freed, storage._cdata)
        return out

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While active, record tensors, and storages that change their size, as FSDP2's do."""
        resize = torch.UntypedStorage.resize_
        propagate = ShardingPropagator._propagate_tensor_meta_non_cached

        def resized(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            if storage._cdata in self._live:
                self._record_freed(storage._cdata)
                self._record(storage, "resize_")
            return result

        def propagated(*args: Any) -> Any:
            self._paused = True  # a DTensor's operators are tried on temporary tensors
            try:
                return propagate(*args)
            finally:
                self._paused = False

        with (
            mock.patch.object(torch.UntypedStorage, "resize_", resized),
            mock.patch.object(ShardingPropagator, propagate.__name__, propagated),
            self,
        ):
            yield

    def during(self, phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a call in a phase of its own; the previous phase continues after it."""

        def called(*args: Any, **kwargs: Any) -> Any:
            before, self.phase = self.phase, phase
            try:
                return call(*args, **kwargs)
            finally:
                self.phase = before

        return called

    def memory(self) -> dict[str, Any]:
        """Bytes as torch's allocator would count them, until now.

        `spans` has the peak bytes of each phase, and of three parts of backward: the head, the
        layers but the first, and the first layer, which is the last one. A span's peak is a line in
        the number of layers. `owners` are the lines of code that hold most at the peak.
        """
        live = peak = 0
        peaks, live_at_end, spans = Counter[str](), Counter[str](), Counter[str]()
        at_peak, peak_index = Counter[Allocation](), 0
        for index, (phase, part, allocation, number) in enumerate(self._entries):
            live += number * allocation.size
            live_at_end[phase] = live
            peaks[phase] = max(peaks[phase], live)
            spans[part + phase] = max(spans[part + phase], live)
            if live > peak:
                peak, peak_index = live, index
        for _, _, allocation, number in self._entries[: peak_index + 1]:
            at_peak[allocation] += number
        owners: dict[tuple[str, str], dict[str, Any]] = {}
        for (made_by, phase, size), count in at_peak.items():
            new: dict[str, Any] = {"made_by": made_by, "phase": phase, "tensors": 0, "bytes": 0}
            owner = owners.setdefault((made_by, phase), new)
            owner["tensors"] += count
            owner["bytes"] += count * size
        return {
            "peak_bytes": peak,
            "phases": {
                phase: {"peak_bytes": peaks[phase], "live_bytes": live_at_end[phase]}
                for phase in PHASES
                if phase in peaks
            },
            "spans": dict(spans),
            "owners": sorted(
                (owner for owner in owners.values() if owner["tensors"]),
                key=lambda owner: -owner["bytes"],
            ),
        }

    def _record(self, storage: torch.UntypedStorage, operator: str) -> None:
        size = math.ceil(storage.nbytes() / _BLOCK) * _BLOCK
        allocation = Allocation(f"{_calling_line()} {operator}", self.phase, size)
        self._live[storage._cdata] = allocation
        self._note(allocation, 1)

    def _record_freed(self, key: int) -> None:
        self._note(self._live.pop(key), -1)

    def _note(self, allocation: Allocation, number: int) -> None:
        part = self.part if self.phase == "backward" else ""
        self._entries.append((self.phase, part, allocation, number))


def _device_of(tensor: Tensor) -> torch.device:
    """A fake tensor's pretended device, read without the operator that `.device` would run."""
    return tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device


def _calling_line() -> str:
    """The nearest line of the project's or an engine's code, as folder/file:line."""
    frame = sys._getframe(2)
    while frame is not None:
        if _explains(frame.f_globals["__name__"]):
            path = Path(frame.f_code.co_filename)
            return f"{path.parent.name}/{path.name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"


@functools.cache
def _explains(module: str) -> bool:
    """Whether a module of this name explains an allocation, wherever its file lies."""
    package, *inner = module.split(".")
    packages, parts_of_torch = _EXPLAINING
    known = package in packages or (package == "torch" and not parts_of_torch.isdisjoint(inner))
    return known and module.split(".")[-1] not in _WRAPPERS
