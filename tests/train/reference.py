"""The same model written down once more, naively: one process, plain torch, no DeepSpeed.

Only the names of the weights and the batches are shared with the engine. Attention is a mask and a
softmax, heads are repeated, rotations are complex numbers, the loss is a logsumexp.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from scaling.study.point import Point
from scaling.train.data import draw, sequences
from scaling.train.engines.trainer import BETAS, WEIGHT_DECAY
from scaling.train.model.blueprint import Blueprint, initial_weight
from scaling.train.model.decoder import Decoder
from scaling.train.model.encoder_decoder import EncoderDecoder
from scaling.train.parallel.tensor import TensorParallel

# A hundred times the rate of a study: an update that is wrong shows in the second or third loss.
LEARNING_RATE = 1e-3
Weights = dict[str, torch.Tensor]
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Curve:
    losses: list[float]
    grad_norms: list[float]


def reference_curve(
    point: Point, *, drawn_on: torch.device = CPU, learning_rate: float = LEARNING_RATE
) -> Curve:
    """Losses and gradient norms of the first steps, in fp32 on the CPU.

    The weights are those that ranks on `drawn_on` draw: each kind of device draws other numbers.
    """
    weights = drawn_weights(point, drawn_on)
    optimizer = torch.optim.AdamW(
        list(weights.values()), lr=learning_rate, betas=BETAS, weight_decay=WEIGHT_DECAY
    )
    losses, grad_norms = [], []
    for step in range(point.warmup_steps + point.measured_steps):
        optimizer.zero_grad()
        loss = _loss(point, weights, *_next_tokens(point, step))
        loss.backward()
        squares = [weight.grad.square().sum() for weight in weights.values()]
        grad_norms.append(torch.stack(squares).sum().sqrt().item())
        losses.append(loss.item())
        _clip(point, weights.values(), grad_norms[-1])
        optimizer.step()
    return Curve(losses, grad_norms)


def model_curve(point: Point) -> Curve:
    """The same from the engine's model, in one process without DeepSpeed.

    For families that are not written down here; test_oracles checks them.
    """
    plan = Blueprint(
        shape=point.shape, layout=point.layout, tp=TensorParallel(), seed=point.seed, device=CPU
    )
    pairs = point.shape.family == "t5"
    model = EncoderDecoder(plan) if pairs else Decoder(plan)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY
    )
    losses, grad_norms = [], []
    for step in range(point.warmup_steps + point.measured_steps):
        ids, labels = _pairs(point, step) if pairs else _next_tokens(point, step)
        optimizer.zero_grad()
        loss = model(ids, labels)
        loss.backward()
        grad_norms.append(
            torch.nn.utils.get_total_norm([w.grad for w in model.parameters()]).item()
        )
        losses.append(loss.item())
        _clip(point, model.parameters(), grad_norms[-1])
        optimizer.step()
    return Curve(losses, grad_norms)


def _clip(point: Point, weights: Iterable[torch.Tensor], norm: float) -> None:
    if point.gradient_clipping:
        for weight in weights:
            assert weight.grad is not None
            weight.grad *= min(1.0, point.gradient_clipping / norm)


def drawn_weights(point: Point, device: torch.device = CPU) -> Weights:
    shape = point.shape
    h, d, ffn = shape.hidden_size, shape.head_dim, shape.ffn_hidden_size
    shapes = {"embedding": (shape.vocab_size, h)}
    if not shape.tied_embeddings:
        shapes["head"] = (shape.vocab_size, h)
    for i in range(shape.num_layers):
        shapes[f"layers.{i}.attention.query"] = (shape.num_heads * d, h)
        shapes[f"layers.{i}.attention.key"] = (shape.num_kv_heads * d, h)
        shapes[f"layers.{i}.attention.value"] = (shape.num_kv_heads * d, h)
        shapes[f"layers.{i}.attention.output"] = (h, shape.num_heads * d)
        if shape.gated_mlp:
            shapes[f"layers.{i}.feed_forward.gate"] = (ffn, h)
        shapes[f"layers.{i}.feed_forward.up"] = (ffn, h)
        shapes[f"layers.{i}.feed_forward.down"] = (h, ffn)
    weights = {
        n: initial_weight(n, s, seed=point.seed, device=device).to(CPU) for n, s in shapes.items()
    }
    norms = [f"layers.{i}.{part}" for i in range(shape.num_layers) for part in ("norm1", "norm2")]
    weights |= {name: torch.ones(h) for name in [*norms, "norm"]}
    return {name: weight.requires_grad_() for name, weight in weights.items()}


def _next_tokens(point: Point, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = _global_batch(point, step, point.layout.seq_length)
    return tokens[:, :-1], tokens[:, 1:]


def _pairs(point: Point, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Half of the tokens are the input; the other half the target, seen one token late."""
    s = point.layout.seq_length
    tokens = _global_batch(point, step, 2 * s - 1)
    source, target = tokens[:, :s], tokens[:, s:]
    late = target.roll(1, 1)
    late[:, 0] = 0
    return torch.stack((source, late), 1), target


def _global_batch(point: Point, step: int, seq_length: int) -> torch.Tensor:
    layout, shape = point.layout, point.shape
    draws = [
        draw(point.seed, step, index, shape.vocab_size) for index in range(layout.global_batch_size)
    ]
    return sequences(draws, seq_length=seq_length, vocab_size=shape.vocab_size, device=CPU)


def _loss(point: Point, weights: Weights, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    x = weights["embedding"][ids]
    for i in range(point.shape.num_layers):
        layer = {
            name.removeprefix(f"layers.{i}."): weight
            for name, weight in weights.items()
            if name.startswith(f"layers.{i}.")
        }
        x = x + _attention(point, layer, _norm(x, layer["norm1"]))
        x = x + _feed_forward(layer, _norm(x, layer["norm2"]))
    logits = _norm(x, weights["norm"]) @ weights.get("head", weights["embedding"]).T
    chosen = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return (logits.logsumexp(-1) - chosen).mean()


def _norm(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * scale


def _attention(point: Point, layer: Weights, x: torch.Tensor) -> torch.Tensor:
    shape = point.shape
    b, s, _ = x.shape

    def heads(name: str) -> torch.Tensor:
        return (x @ layer[f"attention.{name}"].T).view(b, s, -1, shape.head_dim)

    query, key, value = _rotated(heads("query")), _rotated(heads("key")), heads("value")
    repeat = shape.num_heads // shape.num_kv_heads
    key, value = key.repeat_interleave(repeat, 2), value.repeat_interleave(repeat, 2)
    scores = torch.einsum("bqnd,bknd->bnqk", query, key) / shape.head_dim**0.5
    future = torch.ones(s, s).triu(1).bool()
    attended = torch.einsum(
        "bnqk,bknd->bqnd", scores.masked_fill(future, -torch.inf).softmax(-1), value
    )
    return attended.reshape(b, s, -1) @ layer["attention.output"].T


def _rotated(x: torch.Tensor) -> torch.Tensor:
    _, s, _, d = x.shape
    turns = torch.arange(s).unsqueeze(1) * 10_000 ** -(torch.arange(0, d, 2) / d)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    turned = pairs * torch.polar(torch.ones_like(turns), turns).unsqueeze(1)
    return torch.view_as_real(turned).flatten(-2)


def _feed_forward(layer: Weights, x: torch.Tensor) -> torch.Tensor:
    up = x @ layer["feed_forward.up"].T
    if "feed_forward.gate" in layer:
        gate = x @ layer["feed_forward.gate"].T
        inner = gate * torch.sigmoid(gate) * up
    else:
        inner = up * 0.5 * (1 + torch.erf(up / 2**0.5))
    return inner @ layer["feed_forward.down"].T
