"""The losses that every layout must give: the model in one process, without an engine, in fp32."""

from collections.abc import Sequence

import torch

from scaling.layout.shapes import ModelShape
from scaling.study.point import Point
from scaling.train.data import micro_batches
from scaling.train.engines.trainer import BETAS, LEARNING_RATE, WEIGHT_DECAY
from scaling.train.model.blueprint import Blueprint
from scaling.train.model.decoder import Decoder
from scaling.train.parallel.tensor import TensorParallel


def reference_losses(
    shape: ModelShape, point: Point, device: torch.device, *, steps: int
) -> Sequence[float]:
    """Of each step, from weights drawn on `device` as ranks on such a device draw them."""
    plan = Blueprint(
        shape=shape, layout=point.layout, tp=TensorParallel(), seed=point.seed, device=device
    )
    model = Decoder(plan)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY
    )
    losses = []
    for step in range(steps):
        ((ids, labels),) = micro_batches(
            point.layout,
            vocab_size=shape.vocab_size,
            seed=point.seed,
            step=step,
            dp_rank=0,
            device=device,
        )
        optimizer.zero_grad()
        loss = model(ids, labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
