"""PyTorch's own parallelism under one step: sharded replicas, or a pipeline of them."""

import dataclasses
from collections.abc import Sequence

import torch
import torch.distributed as dist

from scaling.train.data import MicroBatch
from scaling.train.engines.torch.pipeline import PipelineTrainer
from scaling.train.engines.torch.sharding import LAYERS, Sharding
from scaling.train.engines.torch.update import Engine, Update
from scaling.train.engines.trainer import Beat, Trainer
from scaling.train.kernels.compiled import compile_each
from scaling.train.model.blueprint import Blueprint
from scaling.train.model.decoder import Decoder
from scaling.train.model.encoder_decoder import EncoderDecoder
from scaling.train.parallel.groups import Groups


def join(_: int) -> None:
    """Nothing is left to do: the ranks' process group is torch's."""


def build(plan: Blueprint, groups: Groups, beat: Beat) -> Trainer:
    """The trainer of this layout, weights drawn and sharded."""
    plan = dataclasses.replace(plan, tp=dataclasses.replace(plan.tp, sums_each=False))
    trainer = PipelineTrainer if plan.layout.pp > 1 else ReplicaTrainer
    return trainer(plan, groups, beat)


class ReplicaTrainer:
    """The whole model on each tp group, sharded over the ranks that see other tokens."""

    def __init__(self, plan: Blueprint, groups: Groups, beat: Beat) -> None:
        beat("building the model")
        self._sharding = Sharding(plan, groups)
        with self._sharding.of_parts():
            model = EncoderDecoder(plan) if plan.shape.family == "t5" else Decoder(plan)
        self._sharding.of(model)
        beat("building the engine")
        if plan.layout.compile:
            compile_each(model, LAYERS)
        update = Update(list(model.parameters()), plan, copies=self._sharding.copies)
        self.engine = Engine(module=model, update=update)
        self._data_group, self._shares = groups.data_group, plan.layout.dp * plan.layout.cp
        self._losses: list[torch.Tensor] = []

    def step(self, batches: Sequence[MicroBatch]) -> None:
        """Train on these micro-batches, one optimizer step."""
        self._losses = []
        for index, (ids, labels) in enumerate(batches, start=1):
            self._sharding.before_micro_batch(self.engine.module, last=index == len(batches))
            loss = self.engine.module(ids, labels)
            (loss / (len(batches) * self._sharding.summed)).backward()
            self._losses.append(loss.detach())
        self._sharding.wait()
        self.engine.update()

    def loss(self) -> float:
        """The mean over the micro-batches of all replicas, whose parts are equally large."""
        mean = torch.stack(self._losses).float().mean()
        dist.all_reduce(mean, group=self._data_group)
        return mean.item() / self._shares

    def grad_norm(self) -> float | None:
        """The last step's gradient norm."""
        return self.engine.update.last_norm()
