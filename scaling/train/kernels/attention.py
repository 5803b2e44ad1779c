"""Causal attention by the kernel that is named: what training runs, and what a probe times.

Signatures are those of flash-attn-4 4.0.0b36, of flash-attn 2.8's hopper folder (FlashAttention-3)
and of apex. None of these could be run where this was written: no GPU.

`math` is scores, softmax and values as three operators, in the precision that trains. Not torch's
own MATH: that multiplies 16-bit inputs in fp32, which leaves a GPU's matrix units for 16 bits idle,
and what flash kernels are compared with would be slower than it has to be.
"""

import contextlib
import functools
import importlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from scaling.layout.axes import Attention, Precision
from scaling.layout.kernels import ATTENTION
from scaling.train.failures import KernelUnavailable, is_no_kernel

DTYPES: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
Call = Callable[[Tensor, Tensor, Tensor], Tensor]


def attend(query: Tensor, key: Tensor, value: Tensor, attention: Attention) -> Tensor:
    """Causal attention by exactly the kernel named: [b, n, s, d] x [b, kv, s, d] -> [b, n, s, d].

    torch raises where that kernel cannot run; it never takes another one.
    """
    return CALLS[attention](query, key, value)


@contextlib.contextmanager
def named_if_unavailable(attention: Attention) -> Iterator[None]:
    """Torch says that there is no kernel as a plain RuntimeError; other errors pass."""
    try:
        yield
    except RuntimeError as error:
        if not is_no_kernel(error):
            raise
        kernel = ATTENTION[attention]
        of = f" ({kernel.backend} of torch {torch.__version__})" if kernel.backend else ""
        reason = str(error).splitlines()[0]
        raise KernelUnavailable(f"{kernel.setting}{of} cannot run here: {reason}") from error


def plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    *,
    scale: float,
    causal: bool = False,
) -> Tensor:
    """[b, n, s, d] x [b, kv, s, d] -> [b, n, s, d]; `bias` [1, n, s, s] is added to the scores.

    Softmax sums in fp32 and rounds once, as its input has the precision of its output.
    """
    shared = query.shape[1] // key.shape[1]
    if shared > 1:
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    scores = (query * scale if scale != 1 else query) @ key.transpose(-2, -1)
    if bias is not None:
        scores += bias
    if causal:
        scores.masked_fill_(keys_ahead(scores.shape[-1], scores.device), -math.inf)
    return scores.softmax(-1) @ value


@functools.lru_cache(maxsize=8)
def keys_ahead(seq_length: int, device: torch.device) -> Tensor:
    """Where a key is ahead of its query: bool [s, s]."""
    return torch.ones(seq_length, seq_length, dtype=torch.bool, device=device).triu(1)


def _plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return plain_attention(query, key, value, scale=query.shape[-1] ** -0.5, causal=True)


def _by_torch(attention: Attention, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    backend: SDPBackend = getattr(SDPBackend, ATTENTION[attention].backend or "")
    with sdpa_kernel(backend):
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=query.shape[1] != key.shape[1]
        )


def _by_flash_package(attention: Attention, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    kernel = _module_of(attention).flash_attn_func
    result = kernel(*(x.transpose(1, 2) for x in (query, key, value)), causal=True)
    # both packages return the logsumexp as well in some of their versions
    out: Tensor = result[0] if isinstance(result, tuple) else result
    return out.transpose(1, 2)


def _fused_softmax(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Megatron's: two batched products, and between them one kernel for scale, mask and softmax.

    apex takes scores [b * n, s, s] in fp16 or bf16.
    """
    module = _module_of("fused_softmax")
    shared = query.shape[1] // key.shape[1]
    if shared > 1:
        key, value = (x.repeat_interleave(shared, 1) for x in (key, value))
    scores = (query @ key.transpose(-1, -2)).flatten(0, 1)
    weights = module.ScaledUpperTriangMaskedSoftmax.apply(scores, query.shape[-1] ** -0.5)
    result: Tensor = weights.view(*query.shape[:2], *weights.shape[1:]) @ value
    return result


def _module_of(attention: Attention) -> Any:
    package = ATTENTION[attention].package
    assert package is not None
    return importlib.import_module(package.module)


# How each kernel of ATTENTION is called; flash1 cannot be.
CALLS: dict[Attention, Call] = {
    "math": _plain,
    "flash2": functools.partial(_by_torch, "flash2"),
    "cudnn": functools.partial(_by_torch, "cudnn"),
    "flash3": functools.partial(_by_flash_package, "flash3"),
    "flash4": functools.partial(_by_flash_package, "flash4"),
    "fused_softmax": _fused_softmax,
}
