"""Traffic of tp ranks in backward, and the work that hides it."""

import functools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from scaling.train.parallel import tensor
from scaling.train.parallel.tensor import TensorParallel


class _Crossing:
    def __init__(self, log: list[str]) -> None:
        self._log = log

    def wait(self) -> None:
        self._log.append("sum ends")


class _Products(TorchDispatchMode):
    """Writes down each matrix product."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self._log = log

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("mm", "addmm_"):
            self._log.append(name)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The order of events, where the other rank's part of every sum is 0."""
    events: list[str] = []

    def begin(*_: Any, async_op: bool = False, **__: Any) -> _Crossing | None:
        events.append("sum begins")
        return _Crossing(events) if async_op else None

    def scatter(part: torch.Tensor, whole: torch.Tensor, **how: Any) -> _Crossing | None:
        part.copy_(whole[: len(part)])
        return begin(**how)

    def gather(whole: torch.Tensor, part: torch.Tensor, **_: Any) -> None:
        whole.copy_(part.repeat(2, 1))

    monkeypatch.setattr(dist, "all_reduce", begin)
    monkeypatch.setattr(tensor, "reduce_scatter", scatter)
    monkeypatch.setattr(tensor, "all_gather", gather)
    return events


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_an_input_gradient_crosses_while_those_of_matrices_are_computed(
    log: list[str], sequence_parallel: bool
) -> None:
    tp = TensorParallel(size=2, sequence_parallel=sequence_parallel)
    draw = functools.partial(torch.randn, dtype=torch.float64, requires_grad=True)
    x, weights, bias = draw(2, 4, 6), [draw(8, 6), draw(10, 6)], draw(8)
    products = list(zip(weights, (bias, None), strict=True))
    entered = tp.enter(x)
    expected = [functional.linear(entered, weight, shift) for weight, shift in products]
    inputs = [x, *weights, bias]
    found = tp.column_parallel(x, *products)
    torch.testing.assert_close(list(found), expected)
    ahead = [torch.randn_like(result) for result in found]
    gradients = torch.autograd.grad(expected, inputs, ahead)
    log.clear()
    with _Products(log):
        overlapped = torch.autograd.grad(found, inputs, ahead)
    torch.testing.assert_close(overlapped, gradients)
    sums = 2 if sequence_parallel else 1  # sequence by sequence
    of_input, of_matrices = ["mm", "addmm_"], ["mm", "mm"]
    assert log == [*of_input, *["sum begins"] * sums, *of_matrices, *["sum ends"] * sums]


def test_a_backward_in_two_passes_computes_and_sums_each_gradient_once(log: list[str]) -> None:
    tp = TensorParallel(size=2, splits_backward=True)
    x, *weights = (torch.randn(size, 6, requires_grad=True) for size in (4, 8, 10))
    found = tp.column_parallel(x, *((weight, None) for weight in weights))
    ahead = [torch.randn_like(result) for result in found]
    log.clear()
    with _Products(log):
        torch.autograd.grad(found, x, ahead, retain_graph=True)
        assert log == ["mm", "mm", "sum begins"]
        torch.autograd.grad(found, weights, ahead)
    assert log[3:] == ["mm", "mm"]
