"""Causal attention by the kernel that is named: what training runs, and what a probe times."""

import contextlib
from collections.abc import Iterator

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from scaling.layout.axes import Attention, Precision
from scaling.train.failures import KernelUnavailable, is_no_kernel
from scaling.train.kernels.attention_packages import attend_by_package, require_package
from scaling.train.kernels.plain_attention import plain_attention

DTYPES: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}

# flash2 is torch's own FLASH_ATTENTION, which on CUDA is built from FlashAttention-2: no package to
# install, and the version is torch's. On a CPU it is torch's tiled kernel of the same algorithm.
_SDPA: dict[Attention, SDPBackend] = {
    "flash2": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention: Attention
) -> torch.Tensor:
    """Causal attention by exactly the kernel named: [b, n, s, d] x [b, kv, s, d] -> [b, n, s, d].

    torch raises where that kernel cannot run; it never takes another one.
    """
    if attention == "math":
        return plain_attention(query, key, value, scale=query.shape[-1] ** -0.5, causal=True)
    if attention not in _SDPA:
        return attend_by_package(query, key, value, attention)
    with sdpa_kernel(_SDPA[attention]):
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=query.shape[1] != key.shape[1]
        )


def require_attention(attention: Attention, dtype: torch.dtype, device: torch.device) -> None:
    """Check that the package of a kernel is here and computes in this precision.

    Raises:
        KernelUnavailable: it does not; the text says what would.
    """
    if attention == "math" or attention in _SDPA:
        return
    require_package(attention, device)
    if dtype is torch.float32:
        raise KernelUnavailable(f"attention={attention} computes in bf16 and fp16, not in fp32")


@contextlib.contextmanager
def named_if_unavailable(attention: Attention) -> Iterator[None]:
    """Torch says that there is no kernel as a plain RuntimeError; other errors pass."""
    try:
        yield
    except RuntimeError as error:
        if not is_no_kernel(error):
            raise
        backend = _SDPA.get(attention)
        of = f" ({backend.name} of torch {torch.__version__})" if backend else ""
        said = str(error).splitlines()[0]
        raise KernelUnavailable(f"attention={attention}{of} cannot run here: {said}") from error
