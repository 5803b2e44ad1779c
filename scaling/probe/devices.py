"""What one device does alone: GEMMs, copies inside its memory, attention forward and backward."""

from collections.abc import Callable

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from scaling.axes import Attention, Precision
from scaling.probe.plan import Task

_DTYPES: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
# the kernels that torch itself brings, as the engine names them
_KERNELS: dict[Attention, SDPBackend] = {
    "math": SDPBackend.MATH,
    "flash2": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


class Unavailable(Exception):
    """A kernel or a precision that is not there; its text says so."""


def work_of(task: Task, device: torch.device) -> Callable[[], object]:
    """The task on buffers of its own; what it returns runs once.

    Random numbers, not zeros: a GPU that multiplies zeros draws less power and clocks higher.

    Raises:
        Unavailable: a kernel or a precision is not there.
        torch.OutOfMemoryError: the buffers do not fit.
    """
    if task.kind == "memory_copy":
        assert task.message_bytes is not None
        source = torch.zeros(task.message_bytes, dtype=torch.uint8, device=device)
        target = torch.ones_like(source)
        return lambda: target.copy_(source)
    if task.precision not in _DTYPES:
        raise Unavailable(f"precision={task.precision} is not probed: torch alone has no such GEMM")
    dtype = _DTYPES[task.precision]
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
    assert task.attention is not None
    if task.attention not in _KERNELS:
        raise Unavailable(
            f"attention={task.attention} is not probed: only torch's own kernels are "
            f"({', '.join(_KERNELS)})"
        )
    sizes = (task.batch_size, task.num_heads, task.num_kv_heads, task.seq_length, task.head_dim)
    batch, query_heads, kept_heads, tokens, head_dim = (size or 0 for size in sizes)

    def heads(count: int) -> torch.Tensor:
        """[b, count, s, d]."""
        shape = (batch, count, tokens, head_dim)
        return torch.randn(shape, device=device, dtype=dtype, requires_grad=True)

    query, key, value = heads(query_heads), heads(kept_heads), heads(kept_heads)
    upstream = torch.randn_like(query)
    kernel = _KERNELS[task.attention]

    def run() -> None:
        with sdpa_kernel(kernel):
            result = functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=key.shape[1] != query.shape[1]
            )
        torch.autograd.grad(result, (query, key, value), upstream)

    try:
        run()
    except RuntimeError as error:
        if "No available kernel" in str(error) or "No viable backend" in str(error):
            said = str(error).splitlines()[0]
            raise Unavailable(f"attention={task.attention} cannot run here: {said}") from error
        raise
    return run
