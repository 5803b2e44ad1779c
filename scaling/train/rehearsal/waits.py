"""What lets the host wait for its device: draining it, and reading what it has computed."""

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor

# Each copies a number to the host, so everything queued before must be done. A fake tensor has no
# number: it reads as nothing, which is what a finite loss and a norm below any bound look like.
_READ: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda _: 0.0,
    "__bool__": lambda _: False,
    "__float__": lambda _: 0.0,
    "__int__": lambda _: 0,
    "tolist": lambda tensor: [0] * tensor.numel(),
}


class Waits:
    """Counts waits by kind and by the line of code that asked."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, str]] = Counter()

    def note(self, kind: str) -> None:
        """Count one wait."""
        self._seen[kind, _caller()] += 1

    def clear(self) -> None:
        """Forget what was counted."""
        self._seen.clear()

    def by_kind(self) -> dict[str, int]:
        """How often each kind was."""
        return _summed((kind, times) for (kind, _), times in self._seen.items())

    def by_place(self) -> dict[str, int]:
        """How often at each line."""
        return _summed((f"{kind} {where}", n) for (kind, where), n in self._seen.items())

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Within, reads of fake tensors are counted and answered."""
        with contextlib.ExitStack() as stack:
            for name in _READ:
                stack.enter_context(mock.patch.object(torch.Tensor, name, self._reading(name)))
            stack.enter_context(mock.patch.object(torch.cuda, "synchronize", self._draining))
            yield

    def _draining(self, *_: Any) -> None:
        self.note("synchronize")

    def _reading(self, name: str) -> Callable[[torch.Tensor], Any]:
        real = getattr(torch.Tensor, name)

        def read(tensor: torch.Tensor) -> Any:
            if not isinstance(tensor, FakeTensor):
                return real(tensor)
            self.note(name.strip("_"))
            return _READ[name](tensor)

        return read


def _summed(counts: Any) -> dict[str, int]:
    total: Counter[str] = Counter()
    for name, times in counts:
        total[name] += times
    return dict(sorted(total.items()))


def _caller() -> str:
    """The nearest line of code that is neither torch's nor a rehearsal's."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        path = Path(frame.f_code.co_filename)
        if (
            path.parent != Path(__file__).parent
            and "torch" not in path.parts
            and path.name != "rehearsal.py"
        ):
            return f"{path.parent.name}/{path.name}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"
