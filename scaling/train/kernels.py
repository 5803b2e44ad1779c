"""The kernels a point names: the one that runs, or the sentence that says why none does."""

import contextlib
from collections.abc import Iterator

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from scaling.axes import Attention, Precision
from scaling.layout import NO_BIAS_GRADIENT, Layout
from scaling.shapes import ModelShape
from scaling.train.attention_packages import attend_by_package, require_package
from scaling.train.compiled import require_compiler
from scaling.train.failures import KernelUnavailable
from scaling.train.fused import require_liger
from scaling.train.plain_attention import plain_attention

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


def require_kernels(shape: ModelShape, layout: Layout, device: torch.device) -> None:
    """Check every kernel the layout names before anything is built.

    Raises:
        KernelUnavailable: one of them is not there; it says what would bring it.
    """
    dtype = _required_dtype(layout.precision, device)
    _require_attention(shape, layout, dtype, device)
    require_liger(layout, device)
    if layout.compile:
        require_compiler(device)


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


def _required_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    if precision == "fp8":
        raise KernelUnavailable(
            "precision=fp8 needs transformer-engine >= 1.0 on a GPU with fp8 matrix units, which "
            f"this engine does not call yet (device: {device.type})"
        )
    if precision == "fp16" and device.type == "cpu":
        raise KernelUnavailable("precision=fp16 needs a CUDA device: DeepSpeed has none on a CPU")
    if precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(False):
        raise KernelUnavailable(
            "precision=bf16 needs a GPU of compute capability >= 8.0, not "
            + torch.cuda.get_device_name(device)
        )
    return DTYPES[precision]


def _require_attention(
    shape: ModelShape, layout: Layout, dtype: torch.dtype, device: torch.device
) -> None:
    name = layout.attention
    if name == "math":
        return
    if name not in _SDPA:
        require_package(name, device)
        if dtype is torch.float32:
            raise KernelUnavailable(f"attention={name} computes in bf16 and fp16, not in fp32")
    if shape.family == "t5":
        raise KernelUnavailable(NO_BIAS_GRADIENT.format(attention=name))
    backend = f" ({_SDPA[name].name} of torch {torch.__version__})" if name in _SDPA else ""
    with _as_unavailable(f"attention={name}{backend}"):
        query = torch.zeros(1, shape.num_heads, 16, shape.head_dim, dtype=dtype, device=device)
        key = torch.zeros(1, shape.num_kv_heads, 16, shape.head_dim, dtype=dtype, device=device)
        attend(query, key, key, name)


@contextlib.contextmanager
def _as_unavailable(what: str) -> Iterator[None]:
    """Torch says "No available kernel" as a plain RuntimeError; other errors pass."""
    try:
        yield
    except RuntimeError as error:
        said = str(error)
        if "No available kernel" in said or "No viable backend" in said:
            raise KernelUnavailable(f"{what} cannot run here: {said.splitlines()[0]}") from error
        raise
