"""What one device does alone: GEMMs, copies inside its memory, attention forward and backward."""

from collections.abc import Callable

import torch

from scaling.probe.plan import Task
from scaling.train.failures import KernelUnavailable
from scaling.train.kernels.attention import DTYPES, attend, named_if_unavailable
from scaling.train.kernels.kernels import require_attention


def work_of(task: Task, device: torch.device) -> Callable[[], object]:
    """The task on buffers of its own; what it returns runs once.

    Random numbers, not zeros: a GPU that multiplies zeros draws less power and clocks higher.

    Raises:
        KernelUnavailable: a kernel or a precision is not there.
        torch.OutOfMemoryError: the buffers do not fit.
    """
    if task.kind == "memory_copy":
        assert task.message_bytes is not None
        source = torch.zeros(task.message_bytes, dtype=torch.uint8, device=device)
        target = torch.ones_like(source)
        return lambda: target.copy_(source)
    if task.precision not in DTYPES:
        raise KernelUnavailable(
            f"precision={task.precision} is not probed: torch alone has no such GEMM"
        )
    dtype = DTYPES[task.precision]
    return _gemm(task, dtype, device) if task.kind == "gemm" else _attention(task, dtype, device)


def _gemm(task: Task, dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
    assert task.m is not None
    assert task.n is not None
    assert task.k is not None
    left = torch.randn(task.m, task.k, device=device, dtype=dtype)
    weight = torch.randn(task.n, task.k, device=device, dtype=dtype)  # as functional.linear has it
    out = torch.empty(task.m, task.n, device=device, dtype=dtype)
    return lambda: torch.mm(left, weight.t(), out=out)


def _attention(task: Task, dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
    kernel = task.attention
    assert kernel is not None
    require_attention(kernel, task.precision, device)
    sizes = (task.batch_size, task.num_heads, task.num_kv_heads, task.seq_length, task.head_dim)
    batch, query_heads, kept_heads, tokens, head_dim = (size or 0 for size in sizes)

    def heads(count: int) -> torch.Tensor:
        """[b, count, s, d]."""
        shape = (batch, count, tokens, head_dim)
        return torch.randn(shape, device=device, dtype=dtype, requires_grad=True)

    query, key, value = heads(query_heads), heads(kept_heads), heads(kept_heads)
    upstream = torch.randn_like(query)

    def run() -> None:
        result = attend(query, key, value, kernel)
        torch.autograd.grad(result, (query, key, value), upstream)

    with named_if_unavailable(kernel):
        run()
    return run
