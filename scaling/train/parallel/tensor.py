"""Tensor parallelism after Megatron-LM: what crosses the ranks of one tp group, and when.

A block's first matrices are split by columns and its last one by rows (arXiv 1909.08053), so that a
block needs the other ranks only where it begins (`enter`) and where it ends (`leave`). With
`sequence_parallel` the activations between blocks are split along the sequence
(arXiv 2205.05198): `enter` then gathers them and `leave` scatters the sum. In backward the input's
gradient crosses the ranks while the gradients of the matrices are computed (`columns`), as in
Megatron-LM. A compiler takes collectives into its graph as torch's functional ones, and orders them
itself: at one that goes on beside what follows, or whose input changes, it would end the graph.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from scaling.train.parallel.conjugate import conjugate, identity

# torch 2.13 renamed both collectives and warns about the old names; 2.11 has only those.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorParallel:
    """This rank's place in its tp group. `group` is None where the group is this rank alone.

    `reduces_in_hooks`: hooks all-reduce the gradients of replicated weights as each one arrives.
    FSDP2 replaces the weights it shards, which drops their hooks, so the torch engine turns this
    off and sums those gradients at the end of a step.
    """

    size: int = 1
    rank: int = 0
    group: dist.ProcessGroup | None = None
    sequence_parallel: bool = False
    reduces_in_hooks: bool = True

    def enter(self, x: Tensor) -> Tensor:
        """Before column-split matrices: the whole sequence on every rank."""
        if self.size == 1:
            return x
        pair = (_gather, _scatter_sum) if self.sequence_parallel else (identity, _all_reduced)
        return conjugate(*pair, x, self)

    def column_parallel(
        self,
        x: Tensor,
        *products: tuple[Tensor, Tensor | None],
        linear: Callable[..., Tensor] = functional.linear,
    ) -> Sequence[Tensor]:
        """`enter`, then the product with each column-split matrix, and its shift if it has one.

        A compiler orders collectives itself, and 8-bit products have a backward of their own: there
        the input's gradient crosses after those of the matrices.
        """
        if self.size == 1 or torch.compiler.is_compiling() or linear is not functional.linear:
            x = self.enter(x)
            return [linear(x, weight, bias) for weight, bias in products]
        weights, biases = zip(*products, strict=True)
        results: Sequence[Tensor] = _Columns.apply(x, self, *weights, *biases)  # type: ignore[no-untyped-call]
        return results

    def leave(self, x: Tensor) -> Tensor:
        """After row-split matrices: the ranks' partial results summed."""
        if self.size == 1:
            return x
        return conjugate(_scatter_sum, _gather, x, self) if self.sequence_parallel else self.sum(x)

    def sum(self, x: Tensor) -> Tensor:
        """The sum over the group, whose gradient each rank already has in full."""
        return x if self.size == 1 else conjugate(_all_reduced, identity, x, self)

    def max(self, x: Tensor) -> Tensor:
        """The largest over the group, without a gradient."""
        if self.size > 1:
            dist.all_reduce(x, dist.ReduceOp.MAX, group=self.group)
        return x

    def mark_sharded(self, weight: nn.Parameter) -> nn.Parameter:
        """Tell the engine that each rank holds another part, so that norms count every part."""
        if self.size > 1:
            weight.tensor_model_parallel = True  # type: ignore[attr-defined]
        return weight

    def mark_replicated(self, weight: nn.Parameter) -> nn.Parameter:
        """A weight that every rank holds but that meets only this rank's part of the sequence."""
        if self.sequence_parallel and self.reduces_in_hooks:
            weight.register_hook(self._sum_over_sequence)
        return weight

    def _sum_over_sequence(self, gradient: Tensor) -> Tensor:
        return _all_reduced(gradient.clone(), self)  # others may read what comes


def _gather(x: Tensor, tp: TensorParallel) -> Tensor:
    """[b, s/tp, h] -> [b, s, h], sequence by sequence: so nothing is transposed."""
    batch, tokens, width = x.shape
    part, whole = x.contiguous(), x.new_empty(batch, tokens * tp.size, width)
    for sequence in range(batch):
        _all_gather(whole[sequence], part[sequence], group=tp.group)
    return whole


def _scatter_sum(x: Tensor, tp: TensorParallel) -> Tensor:
    """[b, s, h] -> [b, s/tp, h], summed over the ranks, sequence by sequence."""
    part, crossing = _begin_scatter_sum(x.contiguous(), tp)
    for work in crossing:
        work.wait()
    return part


def _begin_scatter_sum(x: Tensor, tp: TensorParallel) -> tuple[Tensor, list[dist.Work]]:
    batch, tokens, width = x.shape
    part = x.new_empty(batch, tokens // tp.size, width)
    aside = not torch.compiler.is_compiling()
    works = [
        _reduce_scatter(one, whole, group=tp.group, async_op=aside)
        for one, whole in zip(part, x, strict=True)
    ]
    return part, works if aside else []


def _all_reduced(x: Tensor, tp: TensorParallel) -> Tensor:
    """The sum, in the memory of `x` where that is in one piece.

    What enters or leaves a block is a matrix product's result or gradient, which nobody else reads.
    """
    whole = x.clone() if torch.compiler.is_compiling() else x.contiguous()
    dist.all_reduce(whole, group=tp.group)
    return whole


class _Columns(torch.autograd.Function):
    """On CUDA collectives queue on a stream of their own, so to wait is not to stop the host."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, tp: TensorParallel, *matrices: Tensor | None
    ) -> tuple[Tensor, ...]:
        weights: Sequence[Any] = matrices[: len(matrices) // 2]
        biases = matrices[len(weights) :]
        whole = _gather(x, tp) if tp.sequence_parallel else x
        ctx.tp, ctx.shifted = tp, [bias is not None for bias in biases]
        ctx.save_for_backward(whole, *weights)
        return tuple(
            functional.linear(whole, weight, bias)
            for weight, bias in zip(weights, biases, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        rows = [gradient.flatten(0, -2) for gradient in gradients]
        summed = rows[0] @ weights[0]
        for row, weight in zip(rows[1:], weights[1:], strict=True):
            summed.addmm_(row, weight)
        summed, crossing = _begin_sum(summed.view(x.shape), ctx.tp)
        tokens = x.flatten(0, -2)
        of_weights = [row.t() @ tokens for row in rows]
        of_biases = [
            row.sum(0) if shifted else None for row, shifted in zip(rows, ctx.shifted, strict=True)
        ]
        for work in crossing:
            work.wait()
        return summed, None, *of_weights, *of_biases


def _begin_sum(x: Tensor, tp: TensorParallel) -> tuple[Tensor, list[dist.Work]]:
    """The sum over the ranks, of this rank's part of the sequence where that is split."""
    if not tp.sequence_parallel:
        return x, [dist.all_reduce(x, group=tp.group, async_op=True)]
    return _begin_scatter_sum(x, tp)
