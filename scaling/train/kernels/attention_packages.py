"""Attention kernels that come in packages of their own; called where they are installed.

Signatures are those of flash-attn-4 4.0.0b36, of flash-attn 2.8's hopper folder (FlashAttention-3)
and of apex. None of them could be run where this was written: no GPU.
"""

import importlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass

import torch

from scaling.layout.axes import Attention
from scaling.train.failures import KernelUnavailable

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """Where a kernel comes from. `needed` is for people; `module` is what is imported."""

    name: str
    needed: str
    module: str


PACKAGES: dict[Attention, Package] = {
    "fused_softmax": Package(
        name="apex",
        needed="apex built with --cuda_ext",
        module="apex.transformer.functional.fused_softmax",
    ),
    "flash3": Package(
        name="flash-attn-3",
        needed="flash-attn-3 >= 3.0 (Hopper)",
        module="flash_attn_interface",
    ),
    "flash4": Package(
        name="flash-attn-4",
        needed="flash-attn-4 >= 4.0 (Hopper, Blackwell)",
        module="flash_attn.cute",
    ),
}


def require_package(attention: Attention, device: torch.device) -> None:
    """Check that the package of this kernel can be imported, and that there is a GPU for it.

    Raises:
        KernelUnavailable: it says what would bring it.
    """
    if attention == "flash1":
        raise KernelUnavailable(
            "attention=flash1 needs flash-attn 1.0.9, which is built against torch < 2.1, not "
            f"against torch {torch.__version__}"
        )
    package = PACKAGES[attention]
    installed = version_of(attention)
    if installed is None:
        raise KernelUnavailable(
            f"attention={attention} needs {package.needed}; {package.name} is not installed"
        )
    if device.type == "cpu":
        raise KernelUnavailable(
            f"attention={attention} needs {package.needed}; this rank runs on a CPU"
        )
    try:
        importlib.import_module(package.module)
    except ImportError as error:
        raise KernelUnavailable(
            f"attention={attention} needs {package.needed}; {package.name} {installed} cannot be "
            f"imported: {error}"
        ) from error


def version_of(attention: Attention) -> str | None:
    """The installed version of this kernel's package, None where there is none."""
    if attention not in PACKAGES:
        return None
    try:
        return importlib.metadata.version(PACKAGES[attention].name)
    except importlib.metadata.PackageNotFoundError:
        return None


def attend_by_package(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention: Attention
) -> torch.Tensor:
    """Causal attention: [b, n, s, d] x [b, kv, s, d] -> [b, n, s, d]."""
    if attention == "fused_softmax":
        return _fused_softmax(query, key, value)
    kernel = importlib.import_module(PACKAGES[attention].module).flash_attn_func
    found = kernel(*(x.transpose(1, 2) for x in (query, key, value)), causal=True)
    # both packages return the logsumexp as well in some of their versions
    out: torch.Tensor = found[0] if isinstance(found, tuple) else found
    return out.transpose(1, 2)


def _fused_softmax(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Megatron's: two batched products, and between them one kernel for scale, mask and softmax.

    apex takes scores [b * n, s, s] in fp16 or bf16.
    """
    module = importlib.import_module(PACKAGES["fused_softmax"].module)
    shared = query.shape[1] // key.shape[1]
    if shared > 1:
        key, value = (x.repeat_interleave(shared, 1) for x in (key, value))
    scores = (query @ key.transpose(-1, -2)).flatten(0, 1)
    weights = module.ScaledUpperTriangMaskedSoftmax.apply(scores, query.shape[-1] ** -0.5)
    result: torch.Tensor = weights.view(*query.shape[:2], *weights.shape[1:]) @ value
    return result
