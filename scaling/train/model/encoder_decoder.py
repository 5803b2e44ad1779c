"""The encoder-decoder of mT5 (arXiv 2010.11934), from two streams of token ids to a loss.

It has RMSNorm before each block and after each stack, gated GELU, no biases, and an untied head.
Scores are not scaled; T5 draws its query weights smaller instead. Positions are a learned number
for each head and bucket of distances, added to the scores; the layers of a stack share one table
(arXiv 1910.10683, section 2.1).

Shapes at the boundaries. There are b pairs of an input and a target, s = seq_length / cp tokens of
each on a rank, and hidden size h:

    embed_pair    ids [b, 2, s]                    -> source, target [b, s', h]
    StackLayer    [b, s', h]; the decoder's also memory [b, s, h] -> [b, s', h]

s' is s / tp under `sequence_parallel`, else s. The memory is the encoder's output, gathered over tp
once for all layers.
"""

import functools
import math
from typing import Any

import torch
from torch import Tensor, nn

from scaling.layout.shapes import T5_BUCKETS
from scaling.train.kernels.attention import causal_mask, plain_attention
from scaling.train.model.blocks import FeedForward, Norm, Projections, attention_core
from scaling.train.model.blueprint import Blueprint, checkpointed
from scaling.train.model.decoder import Embedding, FinalNorm, Head, loss_function

_FARTHEST = 128  # tokens; larger distances share the last bucket


class RelativePositionBias(nn.Module):
    """The position table of one stack; each tp rank holds its heads' rows."""

    def __init__(self, plan: Blueprint, name: str, *, causal: bool) -> None:
        super().__init__()
        self.plan, self.causal = plan, causal
        self.table = plan.sharded_weight(name, plan.shape.num_heads, T5_BUCKETS, dim=0)

    def forward(self) -> Tensor:
        """The bias that the stack's layers add to their scores [1, n, s, s], -inf where masked.

        s is the whole sequence. n counts the heads in this rank's attention: under cp a part of the
        heads / tp that it has weights for, as the all-to-all distributes them.
        """
        table, seq_length = self.table, self.plan.layout.seq_length
        bucket = relative_position_buckets(
            seq_length, bidirectional=not self.causal, device=table.device
        )
        # in fp32, because the gradient of each number is a sum over all pairs of tokens
        of_distance = self.plan.cp.shard(table, dim=0).float()[:, bucket]
        # row i of the square begins i steps before distance 0
        square = of_distance.unfold(-1, seq_length, 1).flip(-2)
        if self.causal:
            square = square.masked_fill(causal_mask(seq_length, table.device), -math.inf)
        return square.to(table.dtype).unsqueeze(0)


@functools.lru_cache(maxsize=8)
def relative_position_buckets(
    seq_length: int, *, bidirectional: bool, device: torch.device
) -> Tensor:
    """The bucket of each distance, key minus query, from 1 - s to s - 1: int64 [2 s - 1].

    Half of the buckets hold one distance each; the others grow logarithmically up to `_FARTHEST`.
    An encoder uses half of all buckets for keys ahead, a decoder none. Computed on the CPU, so that
    logarithms round the same everywhere, and moved once.
    """
    distances = torch.arange(1 - seq_length, seq_length)
    held = T5_BUCKETS // 2 if bidirectional else T5_BUCKETS
    first = torch.where(distances > 0, held, 0) if bidirectional else torch.zeros_like(distances)
    far = distances.abs() if bidirectional else (-distances).clamp(min=0)
    exact = held // 2
    growth = torch.log(far.float() / exact) / math.log(_FARTHEST / exact)
    grown = (exact + (growth.clamp(min=0) * (held - exact)).long()).clamp(max=held - 1)
    return (first + torch.where(far < exact, far, grown)).to(device)


class Attention(Projections):
    """Attention of a stream to itself, or to the encoder's output."""

    def __init__(self, plan: Blueprint, name: str) -> None:
        # T5 divides the initial query weights by sqrt(d), where others divide the scores
        super().__init__(plan, name, gain=plan.shape.head_dim**-0.5)
        # no flash kernel returns the gradient of a bias
        self.attend = attention_core(plan, functools.partial(plain_attention, scale=1.0))

    def forward(self, x: Tensor, memory: Tensor | None, bias: Tensor | None) -> Tensor:
        """X [b, s', h] -> this rank's term of the sum [b, s, h].

        With the encoder's `memory` [b, s, h] keys and values come from it, otherwise from x.
        """
        weights = [self.query, self.key, self.value] if memory is None else [self.query]
        products = ((weight, None) for weight in weights)
        projected = list(self.tp.column_parallel(x, *products, linear=self.linear))
        if memory is not None:
            projected += [self.linear(memory, weight, None) for weight in (self.key, self.value)]
        heads = (x.view(*x.shape[:2], -1, self.head_dim) for x in projected)
        return self.linear(self.attend(*heads, bias).flatten(2), self.output, None)


class StackLayer(nn.Module):
    """Attention and feed-forward, each with a norm before and a residual around.

    A layer that `crosses` also attends to the encoder's output, in between.
    """

    def __init__(self, plan: Blueprint, name: str, *, crosses: bool) -> None:
        super().__init__()
        self.tp = plan.tp
        self.attention_norm, self.feed_forward_norm = Norm(plan), Norm(plan)
        self.attention = Attention(plan, f"{name}.attention")
        self.cross_norm = Norm(plan) if crosses else None
        self.cross_attention = Attention(plan, f"{name}.cross_attention") if crosses else None
        self.feed_forward = FeedForward(plan, f"{name}.feed_forward")

    def forward(self, x: Tensor, bias: Tensor, memory: Tensor | None = None) -> Tensor:
        """X [b, s', h] and, if it crosses, memory [b, s, h] -> [b, s', h]."""
        tp = self.tp
        x = x + tp.leave(self.attention(self.attention_norm(x), None, bias))
        if self.cross_norm is not None and self.cross_attention is not None:
            x = x + tp.leave(self.cross_attention(self.cross_norm(x), memory, None))
        return x + tp.leave(self.feed_forward(self.feed_forward_norm(x)))


class EncoderDecoder(nn.Module):
    """The whole model on one tp group, loss included."""

    def __init__(self, plan: Blueprint) -> None:
        super().__init__()
        shape = plan.shape
        self.tp = plan.tp
        self.embedding = Embedding(plan)
        self.encoder_bias = RelativePositionBias(plan, "encoder.position_bias", causal=False)
        self.encoder = nn.ModuleList(
            StackLayer(plan, f"encoder.{i}", crosses=False) for i in range(shape.num_encoder_layers)
        )
        self.encoder_norm = FinalNorm(plan)
        self.decoder_bias = RelativePositionBias(plan, "decoder.position_bias", causal=True)
        self.decoder = nn.ModuleList(
            StackLayer(plan, f"decoder.{i}", crosses=True) for i in range(shape.num_layers)
        )
        self.norm = FinalNorm(plan)
        self.head = Head(plan)
        self.loss = loss_function(plan)
        self.recompute = plan.layout.activation_checkpointing == "full"

    def logits(self, ids: Tensor) -> Tensor:
        """Ids [b, 2, s], input and target -> [b, s, vocab / tp] of the target."""
        # looked up together
        source, target = self.embedding(ids.transpose(0, 1).flatten(0, 1)).chunk(2)
        run: Any = checkpointed if self.recompute else lambda layer, *inputs: layer(*inputs)
        bias = self.encoder_bias()
        for layer in self.encoder:
            source = run(layer, source, bias)
        memory, bias = self.tp.enter(self.encoder_norm(source)), self.decoder_bias()
        for layer in self.decoder:
            target = run(layer, target, bias, memory)
        logits: Tensor = self.head(self.norm(target))
        return logits

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Ids [b, 2, s], labels [b, s] -> mean loss over the targets of the micro-batch."""
        return self.loss(self.logits(ids), labels)
