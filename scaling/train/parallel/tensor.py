"""Tensor parallelism after Megatron-LM: the collectives of one tp group.

A block's first matrices are split by columns and its last by rows (arXiv 1909.08053). So a block
communicates only where it begins (`enter`) and where it ends (`leave`):

    forward              enter                       leave
    plain                nothing                     all-reduce [b, s, h]
    sequence_parallel    all-gather [b, s/tp, h]     reduce-scatter [b, s, h] (arXiv 2205.05198)

In backward each does what the other does in forward. The all-reduce or reduce-scatter of the
input's gradient runs while the gradients of the matrices are computed (`column_parallel`), as in
Megatron-LM. The compiler takes collectives into its graph as torch's functional ones and orders
them itself; an asynchronous one, or one whose input is changed in place, would break the graph.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from scaling.train.parallel.conjugate import conjugate, identity

# torch 2.13 renamed both collectives and warns about the old names; 2.11 has only those.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorParallel:
    """This rank's place in its tp group. `group` is None where the group is this rank alone.

    `reduces_in_hooks`: hooks all-reduce the gradients of replicated weights as each one arrives.
    FSDP2 replaces the weights it shards, which drops their hooks. So the torch engine turns this
    off and sums those gradients at the end of a step.

    `splits_backward`: the gradients of inputs and of weights are computed in two passes. A backward
    that computes both (`_Columns`) would do all its work, collectives included, in each of them.
    """

    size: int = 1
    rank: int = 0
    group: dist.ProcessGroup | None = None
    sequence_parallel: bool = False
    reduces_in_hooks: bool = True
    splits_backward: bool = False

    def enter(self, x: Tensor) -> Tensor:
        """Before column-split matrices, [b, s', h] -> [b, s, h]: whole sequences on every rank."""
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
        """`enter`, then multiply by each column-split (weight, bias or None).

        Compiled code orders collectives itself, 8-bit products have their own backward, and a split
        one has nothing to compute meanwhile. Elsewhere the input's gradient is reduced beside the
        matrices' gradients.
        """
        own_backward = self.splits_backward or linear is not functional.linear
        if self.size == 1 or own_backward or torch.compiler.is_compiling():
            x = self.enter(x)
            return [linear(x, weight, bias) for weight, bias in products]
        weights, biases = zip(*products, strict=True)
        results: Sequence[Tensor] = _Columns.apply(x, self, *weights, *biases)  # type: ignore[no-untyped-call]
        return results

    def leave(self, x: Tensor) -> Tensor:
        """After row-split matrices, [b, s, h] -> [b, s', h]: the sum of the partial results."""
        if self.size == 1:
            return x
        return conjugate(_scatter_sum, _gather, x, self) if self.sequence_parallel else self.sum(x)

    def sum(self, x: Tensor) -> Tensor:
        """The sum over the group; its gradient is the same on every rank."""
        return x if self.size == 1 else conjugate(_all_reduced, identity, x, self)

    def max(self, x: Tensor) -> Tensor:
        """The maximum over the group, in place and without a gradient."""
        if self.size > 1:
            dist.all_reduce(x, dist.ReduceOp.MAX, group=self.group)
        return x

    def sum_gradient(self, gradient: Tensor) -> Tensor:
        """The sum over the group of a weight's gradient, which other hooks may read."""
        return _all_reduced(gradient.clone(), self)


def _gather(x: Tensor, tp: TensorParallel) -> Tensor:
    """[b, s/tp, h] -> [b, s, h], one all-gather per sequence, so that nothing is transposed."""
    batch, tokens, width = x.shape
    part, whole = x.contiguous(), x.new_empty(batch, tokens * tp.size, width)
    for sequence in range(batch):
        all_gather(whole[sequence], part[sequence], group=tp.group)
    return whole


def _scatter_sum(x: Tensor, tp: TensorParallel) -> Tensor:
    """[b, s, h] -> [b, s/tp, h], one reduce-scatter per sequence."""
    part, works = _begin_scatter_sum(x.contiguous(), tp)
    for work in works:
        work.wait()
    return part


def _begin_scatter_sum(x: Tensor, tp: TensorParallel) -> tuple[Tensor, list[dist.Work]]:
    batch, tokens, width = x.shape
    part = x.new_empty(batch, tokens // tp.size, width)
    async_op = not torch.compiler.is_compiling()
    works = [
        reduce_scatter(own, whole, group=tp.group, async_op=async_op)
        for own, whole in zip(part, x, strict=True)
    ]
    return part, works if async_op else []


def _all_reduced(x: Tensor, tp: TensorParallel) -> Tensor:
    """The sum over the ranks, in place where x is contiguous.

    x is a matrix product's result or gradient at the edge of a block, which nothing else reads.
    """
    whole = x.clone() if torch.compiler.is_compiling() else x.contiguous()
    dist.all_reduce(whole, group=tp.group)
    return whole


class _Columns(torch.autograd.Function):
    """Column-split products. On CUDA waiting for a collective stops the stream, not the host."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, tp: TensorParallel, *matrices: Tensor | None
    ) -> tuple[Tensor, ...]:
        weights: Sequence[Any] = matrices[: len(matrices) // 2]
        biases = matrices[len(weights) :]
        whole = _gather(x, tp) if tp.sequence_parallel else x
        ctx.tp, ctx.has_bias = tp, [bias is not None for bias in biases]
        ctx.save_for_backward(whole, *weights)
        return tuple(
            functional.linear(whole, weight, bias)
            for weight, bias in zip(weights, biases, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        rows = [gradient.flatten(0, -2) for gradient in gradients]
        x_grad = rows[0] @ weights[0]
        for row, weight in zip(rows[1:], weights[1:], strict=True):
            x_grad.addmm_(row, weight)
        x_grad, works = _begin_sum(x_grad.view(x.shape), ctx.tp)
        tokens = x.flatten(0, -2)
        weight_grads = [row.t() @ tokens for row in rows]
        bias_grads = [
            row.sum(0) if has_bias else None
            for row, has_bias in zip(rows, ctx.has_bias, strict=True)
        ]
        for work in works:
            work.wait()
        return x_grad, None, *weight_grads, *bias_grads


def _begin_sum(x: Tensor, tp: TensorParallel) -> tuple[Tensor, list[dist.Work]]:
    """Begin to sum x over the ranks, each keeping its tokens under sequence_parallel."""
    if not tp.sequence_parallel:
        return x, [dist.all_reduce(x, group=tp.group, async_op=True)]
    return _begin_scatter_sum(x, tp)
