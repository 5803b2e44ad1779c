"""The same training in one process: the model and AdamW, without an engine.

test_oracles holds the model to transformers'.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from scaling.study.point import Point
from scaling.train.data import Feed
from scaling.train.engines.trainer import BETAS, WEIGHT_DECAY
from scaling.train.model.blueprint import Blueprint
from scaling.train.model.decoder import Decoder
from scaling.train.model.encoder_decoder import EncoderDecoder
from scaling.train.parallel.groups import Place
from scaling.train.parallel.tensor import TensorParallel

# A hundred times the rate of a study: an update that is wrong shows in the second or third loss.
LEARNING_RATE = 1e-3
CPU = torch.device("cpu")
Curves = list[dict[str, Any]]  # of each rank: its losses and gradient norms, or the reason


@dataclass(frozen=True)
class Curve:
    losses: list[float]
    grad_norms: list[float]


def reference_curve(
    point: Point, *, device: torch.device = CPU, learning_rate: float = LEARNING_RATE
) -> Curve:
    """Losses and gradient norms of the steps of a point that one rank trains at once.

    Ranks on another kind of device draw other weights.
    """
    plan = Blueprint(
        shape=point.shape, layout=point.layout, tp=TensorParallel(), seed=point.seed, device=device
    )
    model = EncoderDecoder(plan) if point.shape.family == "t5" else Decoder(plan)
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(weights, lr=learning_rate, betas=BETAS, weight_decay=WEIGHT_DECAY)
    steps = point.warmup_steps + point.measured_steps
    feed = Feed(point, Place.of(0, point.layout), [1] * steps, first=0, device=device)
    losses, grad_norms = [], []
    for step in range(steps):
        ((ids, labels),) = feed(step)
        optimizer.zero_grad()
        loss = model(ids, labels)
        loss.backward()
        grad_norms.append(torch.nn.utils.get_total_norm([w.grad for w in weights]).item())
        losses.append(loss.item())
        _clip(weights, point.gradient_clipping, grad_norms[-1])
        optimizer.step()
    return Curve(losses, grad_norms)


def _clip(weights: Sequence[torch.nn.Parameter], most: float, norm: float) -> None:
    for weight in weights if most else ():
        assert weight.grad is not None
        weight.grad *= min(1.0, most / norm)
