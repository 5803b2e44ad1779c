"""Compare attention and fused kernels, forward and backward, with fp64 references; time them."""

import dataclasses
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional

from scaling.check.lines import Line, not_here, pass_or_fail
from scaling.layout.axes import Attention, Precision
from scaling.layout.kernels import ATTENTION, FUSED
from scaling.layout.shapes import ModelShape
from scaling.probe.devices import time_samples
from scaling.train.failures import KernelUnavailable, is_out_of_memory
from scaling.train.kernels import fused
from scaling.train.kernels.attention import DTYPES, attend, kernel_named_if_missing, plain_attention
from scaling.train.kernels.availability import require_attention, require_package
from scaling.train.model.blocks import rotate

_TIMED_S = 0.2
_EPSILON = 1e-5
# Tolerated difference over the largest element of each result: several roundings of the precision
# (2^-8 in bf16, 2^-11 in fp16, 2^-24 in fp32). A mask that is off by one exceeds it by far.
TOLERANCE: dict[Precision, float] = {"fp32": 1e-5, "fp16": 5e-3, "bf16": 4e-2}

Inputs = Sequence[torch.Tensor]
Call = Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes(ModelShape):
    """The sizes at which kernels are checked, with a batch of one sequence."""

    num_layers: int = 1
    seq_length: int


SMALL = Sizes(
    num_heads=4, num_kv_heads=2, head_dim=32, seq_length=128, hidden_size=128,
    ffn_hidden_size=344, vocab_size=512,
)  # fmt: skip
# Llama-2 7B's layer. The reference holds a gigabyte of scores in fp64.
LARGE = Sizes(
    num_heads=32, num_kv_heads=32, head_dim=128, seq_length=2048, hidden_size=4096,
    ffn_hidden_size=11008, vocab_size=32000,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel to check: its call, its plain reference, and its inputs' shapes.

    Only attention has `attention`, its value on the axis, and `flops`.
    """

    axis: str
    name: str
    call: Call
    reference: Call
    shapes: Sequence[tuple[int, ...]]
    attention: Attention | None = None
    flops: int | None = None


def kernel_lines(sizes: Sizes, precision: Precision, device: torch.device) -> Iterator[Line]:
    """A line for each kernel that a layout can name, whether it runs or not."""
    for kernel in (*attention_kernels(sizes), *fused_kernels(sizes, device)):
        name = f"{kernel.name} {precision}"
        try:
            line = _compared(name, kernel, precision, device)
        except KernelUnavailable as error:
            line = not_here(name, str(error))
        except Exception as error:  # a compiler of kernels raises its own
            message = " ".join(str(error).split())[:200]
            reason = "out of memory" if is_out_of_memory(error) else message
            line = pass_or_fail(name, passes=False, said=reason)
            line = dataclasses.replace(line, log=traceback.format_exc())
        yield line


def attention_kernels(sizes: Sizes) -> Iterator[Kernel]:
    """Every attention kernel of the table, causal."""
    tokens, width = sizes.seq_length, sizes.head_dim
    for attention, entry in ATTENTION.items():
        if not entry.runs:
            continue
        yield Kernel(
            axis="attention",
            name=f"attention {attention}",
            attention=attention,
            call=lambda query, key, value, name=attention: attend(query, key, value, name),
            reference=partial(plain_attention, scale=width**-0.5, causal=True),
            shapes=[(1, n, tokens, width) for n in (sizes.num_heads, *[sizes.num_kv_heads] * 2)],
            # forward and backward are 3.5 forwards of two products, half of them computed if causal
            flops=7 * sizes.num_heads * tokens**2 * width,
        )


def fused_kernels(sizes: Sizes, device: torch.device) -> Iterator[Kernel]:
    """Every fused kernel of the table."""
    rows, hidden = (1, sizes.seq_length, sizes.hidden_size), sizes.hidden_size
    gates = (1, sizes.seq_length, sizes.ffn_hidden_size)
    heads = [
        (1, sizes.seq_length, n, sizes.head_dim) for n in (sizes.num_heads, sizes.num_kv_heads)
    ]
    angles = torch.arange(sizes.seq_length * sizes.head_dim // 2, device=device)
    angles = angles.view(sizes.seq_length, -1) / 100
    cosine, sine = angles.cos(), angles.sin()
    labels = torch.arange(sizes.seq_length, device=device).unsqueeze(0) % sizes.vocab_size
    # Logits of width 1, as a model's are. Those of width sqrt(hidden) reach hundreds, where bf16
    # rounds to whole numbers and every kernel's softmax would be another one.
    near_one = hidden**-0.5

    def rotated(x: torch.Tensor) -> torch.Tensor:
        return rotate(x, cosine.to(x.dtype), sine.to(x.dtype))

    yield Kernel(
        axis="fused_norm", name="fused_norm",
        call=lambda x, w: fused.rms_norm(x, w, _EPSILON),
        reference=lambda x, w: functional.rms_norm(x, (hidden,), w, _EPSILON),
        shapes=[rows, (hidden,)],
    )  # fmt: skip
    yield Kernel(
        axis="fused_rope", name="fused_rope",
        call=lambda q, k: fused.rotate(q, k, cosine.to(q.dtype), sine.to(q.dtype)),
        reference=lambda q, k: (rotated(q), rotated(k)), shapes=heads,
    )  # fmt: skip
    yield Kernel(
        axis="fused_mlp", name="fused_mlp silu", call=fused.gated_silu,
        reference=lambda gate, up: functional.silu(gate) * up, shapes=[gates, gates],
    )  # fmt: skip
    yield Kernel(
        axis="fused_mlp", name="fused_mlp gelu", call=fused.gated_gelu,
        reference=lambda gate, up: functional.gelu(gate, approximate="tanh") * up,
        shapes=[gates, gates],
    )  # fmt: skip
    yield Kernel(
        axis="fused_cross_entropy", name="fused_cross_entropy",
        call=lambda x, w: fused.linear_cross_entropy(x * near_one, w, labels),
        reference=lambda x, w: functional.cross_entropy(
            (x * near_one @ w.t()).flatten(0, 1), labels.flatten()
        ),
        shapes=[rows, (sizes.vocab_size, hidden)],
    )  # fmt: skip


def _compared(name: str, kernel: Kernel, precision: Precision, device: torch.device) -> Line:
    """The largest difference of a result or gradient, over the reference's largest element."""
    if kernel.attention is None:
        require_package(FUSED[kernel.axis], device)
    else:
        require_attention(kernel.attention, precision, device)
    random = torch.Generator(device).manual_seed(0)
    drawn = [torch.randn(shape, generator=random, device=device) for shape in kernel.shapes]
    inputs = [x.to(DTYPES[precision]) for x in drawn]
    with kernel_named_if_missing(kernel.attention) if kernel.attention else nullcontext():
        results = forward_and_backward(kernel.call, inputs, copied=True)()
        references = forward_and_backward(kernel.reference, [x.double() for x in inputs])()
        drain = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
        run = forward_and_backward(kernel.call, inputs)
        seconds = min(time_samples(run, drain=drain, budget_s=_TIMED_S))
    worst = max(_difference(*pair) for pair in zip(results, references, strict=True))
    rate = f"{1e6 * seconds:.4g} microseconds"
    if kernel.flops is not None:
        rate = f"{kernel.flops / seconds:.3g} FLOP/s"
    limit = TOLERANCE[precision]
    said = f"of the largest element, at most {limit:g}; forward and backward {rate}"
    return pass_or_fail(name, worst, passes=worst <= limit, said=said)


def forward_and_backward(
    call: Call, inputs: Inputs, *, copied: bool = False
) -> Callable[[], list[torch.Tensor]]:
    """A function that returns a call's results, then the gradients of all its inputs.

    The results' gradients run from -1 to 1, so that no input's gradient is a plain sum. A kernel
    may overwrite its inputs and the results' gradients, as Liger's do; with `copied` each call gets
    copies of its own.
    """
    leaves = [x.detach().clone().requires_grad_() for x in inputs]

    def given(tensors: Inputs) -> Inputs:
        return [x.clone() for x in tensors] if copied else tensors

    def forward() -> tuple[torch.Tensor, ...]:
        results = call(*given(leaves))
        return results if isinstance(results, tuple) else (results,)

    upstream = [_upstream(result) for result in forward()]

    def run() -> list[torch.Tensor]:
        results = forward()
        gradients = torch.autograd.grad(results, leaves, given(upstream))
        return [*(result.detach() for result in results), *gradients]

    return run


def _upstream(result: torch.Tensor) -> torch.Tensor:
    if not result.dim():  # a loss
        return torch.ones_like(result)
    rising = torch.linspace(-1, 1, result.numel(), device=result.device, dtype=torch.float64)
    return rising.view(result.shape).to(result.dtype)


def _difference(result: torch.Tensor, reference: torch.Tensor) -> float:
    difference = (result.double() - reference).abs().max() / reference.abs().max()
    return float("inf") if difference.isnan() else float(difference)
