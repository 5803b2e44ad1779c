"""Causal attention by the named kernel, for training and for probes.

FlashAttention-3 and 4 run as torch's FLASH_ATTENTION where torch can switch its implementation,
else by their packages (signatures of flash-attn 2.8's hopper folder and flash-attn-4 4.0.0b36).
Neither could be run where this was written, without a GPU.

`math` is scores, softmax and values as three operators in the training precision. torch's own MATH
multiplies 16-bit inputs in fp32, which leaves a GPU's 16-bit matrix units idle. So it would be a
slower reference for flash kernels than necessary.
"""

import contextlib
import functools
import importlib
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import attention as torch_attention
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from scaling.layout.axes import Attention, Precision
from scaling.layout.kernels import ATTENTION, Kernel
from scaling.train.failures import KernelUnavailable, is_no_kernel

DTYPES: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
# Whether torch can run FlashAttention-3 and 4 in place of its own FlashAttention-2.
SWITCHES_FLASH = hasattr(torch_attention, "restore_flash_attention_impl")
Call = Callable[[Tensor, Tensor, Tensor], Tensor]


def attend(query: Tensor, key: Tensor, value: Tensor, attention: Attention) -> Tensor:
    """Causal attention by this kernel: query [b, n, s, d], key and value [b, kv, s, d].

    Returns [b, n, s, d]. torch raises where the kernel cannot run; it never uses another one.
    """
    return CALLS[attention](query, key, value)


@contextlib.contextmanager
def kernel_named_if_missing(attention: Attention) -> Iterator[None]:
    """Turn torch's RuntimeError for a missing kernel into KernelUnavailable that names it."""
    try:
        yield
    except RuntimeError as error:
        if not is_no_kernel(error):
            raise
        kernel = ATTENTION[attention]
        backend = f" ({kernel.backend} of torch {torch.__version__})" if kernel.backend else ""
        reason = str(error).splitlines()[0]
        raise KernelUnavailable(f"{kernel.setting}{backend} cannot run here: {reason}") from error


def plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    *,
    scale: float,
    causal: bool = False,
) -> Tensor:
    """Attention in three operators: query [b, n, s, d], key and value [b, kv, s, d].

    Returns [b, n, s, d]. `bias` [1, n, s, s] is added to the scores. Softmax sums in fp32 and
    rounds once, because its input has the precision of its output.
    """
    key, value = _one_per_query_head(query, key, value)
    scores = (query * scale if scale != 1 else query) @ key.transpose(-2, -1)
    if bias is not None:
        scores += bias
    if causal:
        scores.masked_fill_(causal_mask(scores.shape[-1], scores.device), -math.inf)
    return scores.softmax(-1) @ value


def _one_per_query_head(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Key and value [b, kv, s, d] -> [b, n, s, d], repeated for the query heads that share them."""
    queries_per_key = query.shape[1] // key.shape[1]
    if queries_per_key == 1:
        return key, value
    return key.repeat_interleave(queries_per_key, 1), value.repeat_interleave(queries_per_key, 1)


@functools.lru_cache(maxsize=8)
def causal_mask(seq_length: int, device: torch.device) -> Tensor:
    """True where a key is ahead of its query: bool [s, s]."""
    return torch.ones(seq_length, seq_length, dtype=torch.bool, device=device).triu(1)


def _plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return plain_attention(query, key, value, scale=query.shape[-1] ** -0.5, causal=True)


def _by_torch(attention: Attention, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    backend: SDPBackend = getattr(SDPBackend, ATTENTION[attention].backend or "")
    with sdpa_kernel(backend):
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=query.shape[1] != key.shape[1]
        )


def _by_newer_flash(attention: Attention, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    if SWITCHES_FLASH:
        return _by_torch(attention, query, key, value)
    package = ATTENTION[attention].package
    assert package is not None
    call = importlib.import_module(package.module).flash_attn_func
    result = call(*(x.transpose(1, 2) for x in (query, key, value)), causal=True)
    # some versions of both packages also return the logsumexp
    out: Tensor = result[0] if isinstance(result, tuple) else result
    return out.transpose(1, 2)


def select_flash(kernel: Kernel) -> None:
    """Have torch's FLASH_ATTENTION run this kernel's implementation, or else its own."""
    if not SWITCHES_FLASH:
        return
    if torch_attention.current_flash_attention_impl() is not None:
        torch_attention.restore_flash_attention_impl()
    if kernel.implementation is not None:
        torch_attention.activate_flash_attention_impl(kernel.implementation)


# The call of each kernel of ATTENTION that runs.
CALLS: dict[Attention, Call] = {
    "math": _plain,
    "flash2": functools.partial(_by_torch, "flash2"),
    "cudnn": functools.partial(_by_torch, "cudnn"),
    "flash3": functools.partial(_by_newer_flash, "flash3"),
    "flash4": functools.partial(_by_newer_flash, "flash4"),
}
