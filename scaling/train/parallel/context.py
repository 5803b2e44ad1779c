"""Context parallelism: the ranks of a cp group share the tokens of each sequence.

Each rank holds s / cp tokens of a sequence everywhere except in attention. With Ulysses an
all-to-all over the cp group trades tokens for heads before attention. So a rank has all tokens of n
/ cp heads, and a second one trades them back (arXiv 2309.14509). In ring attention keys and values
travel from rank to rank, and the partial results are merged (arXiv 2310.01889). For the weights the
ranks are replicas with other data: gradients are averaged over cp as over dp.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scaling.train.parallel.conjugate import conjugate

# query, key, value, and further arguments of the kernel (in a t5 the position bias of its heads)
AttentionFunction = Callable[..., Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextParallel:
    """This rank's place in its cp group. `group` is None where the group is this rank alone."""

    size: int = 1
    rank: int = 0
    group: dist.ProcessGroup | None = None
    ring: bool = False

    def shard(self, x: Tensor, *, dim: int) -> Tensor:
        """This rank's part of x along `dim`: one chunk of consecutive tokens.

        In a ring it is two chunks, equally far from the beginning and from the end. This gives all
        ranks the same amount of causal attention.
        """
        if self.size == 1:
            return x
        if not self.ring:
            return x.chunk(self.size, dim)[self.rank].contiguous()
        chunks = x.chunk(2 * self.size, dim)
        return torch.cat((chunks[self.rank], chunks[-1 - self.rank]), dim)

    def ring_attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Causal attention of this rank's tokens to all ranks' tokens: [b, n, s / cp, d] each.

        It uses torch's flash kernel, whose logsumexp weights the partial results.
        """
        result: Tensor = _Ring.apply(query, key, value, self)  # type: ignore[no-untyped-call]
        return result

    def ulysses(self, attend: AttentionFunction) -> AttentionFunction:
        """The same attention for ranks that hold parts of the tokens, by two all-to-alls.

        Query [b, s / cp, n, d], key and value [b, s / cp, kv, d] -> [b, s / cp, n, d]. With one
        rank, or in a ring, `attend` itself.
        """
        if self.size == 1 or self.ring:
            return attend

        def attended(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> Tensor:
            to_heads, to_tokens = _tokens_for_heads, _heads_for_tokens
            whole = (conjugate(to_heads, to_tokens, x, self) for x in (query, key, value))
            return conjugate(to_tokens, to_heads, attend(*whole, *others), self)

        return attended


def _all_to_all(parts: Tensor, cp: ContextParallel) -> Tensor:
    """[cp, ...] -> [cp, ...]: part i goes to rank i of the cp group; part i came from rank i."""
    parts = parts.contiguous()
    received = torch.empty_like(parts)
    dist.all_to_all_single(received, parts, group=cp.group)
    return received


def _tokens_for_heads(x: Tensor, cp: ContextParallel) -> Tensor:
    """[b, s / cp, n, d] -> [b, s, n / cp, d]."""
    by_rank = x.unflatten(2, (cp.size, -1)).permute(2, 0, 1, 3, 4)
    return _all_to_all(by_rank, cp).transpose(0, 1).flatten(1, 2)


def _heads_for_tokens(x: Tensor, cp: ContextParallel) -> Tensor:
    """[b, s, n / cp, d] -> [b, s / cp, n, d]."""
    by_rank = x.unflatten(1, (cp.size, -1)).transpose(0, 1)
    return _all_to_all(by_rank, cp).permute(1, 2, 0, 3, 4).flatten(2, 3)


@functools.cache
def ring_module() -> Any:
    """Torch's module for ring attention, imported only where it is used."""
    from torch.distributed.tensor.experimental._context_parallel import _attention as ring

    ring.set_rotate_method("alltoall")  # to the next rank; the default gathers everything
    return ring


# torch's flash kernel of a device, its backward, and what forward returns for backward
_KERNELS: dict[str, tuple[Any, Any, tuple[str, ...]]] = {
    "cpu": (
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward,
        (),
    ),
    "cuda": (
        torch.ops.aten._scaled_dot_product_flash_attention,
        torch.ops.aten._scaled_dot_product_flash_attention_backward,
        ("cum_seq_q", "cum_seq_k", "max_q", "max_k", "philox_seed", "philox_offset"),
    ),
}
_TOKENS = 2  # dimension s of [b, n, s, d]


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, cp: ContextParallel) -> Tensor:
        kernel, _, saved = _KERNELS[query.device.type]
        out, logsumexp, *others = ring_module()._templated_ring_attention(
            cp.group, _TOKENS, kernel, query, key, value, is_causal=True, dropout_p=0.0
        )
        ctx.save_for_backward(query, key, value, out, logsumexp)
        ctx.cp, ctx.others = cp, dict(zip(saved, others, strict=False))
        result: Tensor = out
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, logsumexp = ctx.saved_tensors
        of_query, of_key, of_value, *_ = ring_module()._templated_ring_attention_backward(
            ctx.cp.group,
            _TOKENS,
            _KERNELS[query.device.type][1],
            grad_out=gradients[0],
            grad_out_name="grad_out",
            query=query,
            key=key,
            value=value,
            out=out,
            logsumexp=logsumexp,
            is_causal=True,
            dropout_p=0.0,
            **ctx.others,
        )
        return of_query, of_key, of_value, None
