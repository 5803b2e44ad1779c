"""The decoder, from token ids to a loss; one slice per tp rank, s / cp tokens per cp rank.

A llama has rotary positions and RMSNorm; a gpt has learned positions, LayerNorm and biases.

Shapes at the boundaries, with b sequences, s = seq_length / cp tokens of each on a rank, and hidden
size h:

    Embedding  ids [b, s]             -> [b, s', h]
    Layer      [b, s', h]             -> [b, s', h]
    FinalNorm  [b, s', h]             -> [b, s', h]
    Head       [b, s', h]             -> logits [b, s, vocab / tp]
    loss       logits, labels [b, s]  -> scalar

s' is s / tp under `sequence_parallel`, else s.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from scaling.train.kernels import fused
from scaling.train.kernels.compiled import compiled
from scaling.train.model.blocks import FeedForward, Norm, SelfAttention
from scaling.train.model.blueprint import Blueprint, checkpointed
from scaling.train.model.expert_layer import MixtureOfExperts


class Embedding(nn.Module):
    """The embedding; each tp rank holds a range of the vocabulary."""

    def __init__(self, plan: Blueprint) -> None:
        super().__init__()
        self.tp = plan.tp
        vocab_size, hidden_size = plan.shape.vocab_size, plan.shape.hidden_size
        self.weight = plan.sharded_weight("embedding", vocab_size, hidden_size, dim=0)
        self.held = vocab_size // plan.tp.size
        learned = plan.shape.max_positions
        self.positions = (
            plan.replicated_weight("positions", learned, hidden_size) if learned else None
        )
        self.cp = plan.cp

    def forward(self, ids: Tensor) -> Tensor:
        """Ids [b, s] -> [b, s', h]."""
        vectors = self._look_up(ids)
        if self.positions is None:
            return vectors
        positions = self.cp.shard(self.positions[: ids.shape[1] * self.cp.size], dim=0)
        if self.tp.sequence_parallel:
            positions = positions.chunk(self.tp.size)[self.tp.rank]
        return vectors + positions

    def _look_up(self, ids: Tensor) -> Tensor:
        if self.tp.size == 1:
            return functional.embedding(ids, self.weight)
        local = ids - self.tp.rank * self.held
        elsewhere = (local < 0) | (local >= self.held)
        vectors = functional.embedding(local.masked_fill(elsewhere, 0), self.weight)
        return self.tp.leave(vectors.masked_fill(elsewhere.unsqueeze(-1), 0))


class FinalNorm(Norm):
    """The norm after the last layer, a class of its own because a pipeline places it by class."""


class Layer(nn.Module):
    """Attention and feed-forward, each with a norm before and a residual around."""

    def __init__(self, plan: Blueprint, index: int) -> None:
        super().__init__()
        self.tp = plan.tp
        self.attention_norm, self.feed_forward_norm = Norm(plan), Norm(plan)
        self.attention = SelfAttention(plan, f"layers.{index}.attention")
        mixed = plan.shape.num_experts and index >= plan.shape.dense_layers
        kind = MixtureOfExperts if mixed else FeedForward
        self.mixed, self.feed_forward = mixed, kind(plan, f"layers.{index}.feed_forward")
        # added once, to the sum over the tp ranks
        self.attention_bias, self.feed_forward_bias = plan.bias(), plan.bias()

    def forward(self, x: Tensor) -> Tensor:
        """[b, s', h] -> [b, s', h]."""
        tp = self.tp
        attended = tp.leave(self.attention(self.attention_norm(x)))
        x = x + _add_bias(attended, self.attention_bias)
        normed = self.feed_forward_norm(x)
        fed = tp.leave(self.feed_forward(tp.enter(normed) if self.mixed else normed))
        return x + _add_bias(fed, self.feed_forward_bias)


def _add_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias


class Head(nn.Module):
    """Logits of this tp rank's range of the vocabulary."""

    def __init__(self, plan: Blueprint, tied: nn.Parameter | None = None) -> None:
        super().__init__()
        self.tp = plan.tp
        vocab_size, hidden_size = plan.shape.vocab_size, plan.shape.hidden_size
        if tied is None:
            tied = plan.sharded_weight("head", vocab_size, hidden_size, dim=0)
        self.weight = tied

    def forward(self, x: Tensor) -> Tensor:
        """[b, s', h] -> [b, s, vocab / tp]."""
        return self.tp.column_parallel(x, (self.weight, None))[0]


class FusedHead(Head):
    """The head and the loss in one kernel; needs tp = 1."""

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
        """[b, s, h], labels [b, s] -> mean loss of the micro-batch."""
        return fused.linear_cross_entropy(x, self.weight, labels)


Loss = Callable[[Tensor, Tensor], Tensor]


def loss_function(plan: Blueprint) -> Loss:
    """The loss: mean cross-entropy over all tokens of a micro-batch, in fp32.

    With tp each rank holds logits [b, s, vocab / tp]. The tp ranks all-reduce three numbers per
    token: the largest logit, the sum of exponentials, and the label's logit. Compiled, it holds no
    fp32 copy of the logits.
    """
    tp = plan.tp

    def whole(logits: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())

    def parallel(logits: Tensor, labels: Tensor) -> Tensor:
        logits = logits.float()
        logits = logits - tp.max(logits.detach().amax(-1, keepdim=True))
        total = tp.sum(logits.exp().sum(-1))
        held = logits.shape[-1]
        local = labels - tp.rank * held
        elsewhere = (local < 0) | (local >= held)
        of_label = logits.gather(-1, local.masked_fill(elsewhere, 0).unsqueeze(-1)).squeeze(-1)
        return (total.log() - tp.sum(of_label.masked_fill(elsewhere, 0))).mean()

    loss = whole if tp.size == 1 else parallel
    return compiled(loss) if plan.layout.compile else loss


class Chunk(nn.Module):
    """Consecutive layers; a model's first chunk has the embedding, its last one the head."""

    def __init__(
        self, plan: Blueprint, layers: range, *, first: bool = True, last: bool = True
    ) -> None:
        super().__init__()
        self.first, self.last = first, last
        self.embedding = Embedding(plan) if first else None
        self.layers = nn.ModuleList(Layer(plan, i) for i in layers)
        self.norm = FinalNorm(plan) if last else None
        self.fused_loss = plan.layout.fused_cross_entropy
        head = FusedHead if self.fused_loss else Head
        self.head = head(plan, self._tied_weight(plan)) if last else None
        self.recompute = plan.layout.activation_checkpointing == "full"

    def _tied_weight(self, plan: Blueprint) -> nn.Parameter | None:
        """A tied head's weight: the embedding's, or a copy where that is in another chunk."""
        if not plan.shape.tied_embeddings:
            return None
        if self.embedding is not None:
            return self.embedding.weight
        return plan.sharded_weight(
            "embedding", plan.shape.vocab_size, plan.shape.hidden_size, dim=0
        )

    def through_layers(self, x: Tensor) -> Tensor:
        """Ids [b, s] or activations [b, s', h] -> [b, s', h]."""
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = checkpointed(layer, x) if self.recompute else layer(x)
        return x if self.norm is None else self.norm(x)

    def forward(self, x: Tensor) -> Tensor:
        """Ids [b, s] or activations [b, s', h] -> activations or logits [b, s, vocab / tp]."""
        x = self.through_layers(x)
        return x if self.head is None else self.head(x)


class Decoder(Chunk):
    """The whole model on one tp group, loss included."""

    def __init__(self, plan: Blueprint) -> None:
        super().__init__(plan, range(plan.shape.num_layers))
        self.loss = loss_function(plan)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
        """Ids, labels [b, s] -> mean loss of the micro-batch."""
        if not self.fused_loss:
            return self.loss(super().forward(ids), labels)
        loss: Tensor = self.head(self.through_layers(ids), labels)  # type: ignore[misc]
        return loss
