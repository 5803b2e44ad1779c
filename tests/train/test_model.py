"""The models have the weights that their shapes count; a shard holds its own alone."""

import pytest
import torch
from torch import nn

from scaling.layout.shapes import ModelShape
from scaling.study.point import Point
from scaling.train.model.blueprint import Blueprint, shard
from scaling.train.model.decoder import Decoder
from scaling.train.model.encoder_decoder import EncoderDecoder
from scaling.train.parallel.tensor import TensorParallel
from tests.points import TINY, TINY_GPT, TINY_T5, tiny_point

CPU = torch.device("cpu")


def blueprint(point: Point, tp: TensorParallel | None = None) -> Blueprint:
    return Blueprint(
        shape=point.shape,
        layout=point.layout,
        tp=tp or TensorParallel(),
        seed=point.seed,
        device=CPU,
    )


def weights(shape: ModelShape, tp: TensorParallel | None = None) -> dict[str, nn.Parameter]:
    kind = EncoderDecoder if shape.family == "t5" else Decoder
    return dict(kind(blueprint(tiny_point(shape=shape), tp)).named_parameters())


of_every_family = pytest.mark.parametrize(
    "shape", [TINY, TINY_GPT, TINY_T5], ids=lambda shape: shape.family
)


@of_every_family
def test_every_parameter_the_shape_counts_is_built(shape: ModelShape) -> None:
    assert sum(weight.numel() for weight in weights(shape).values()) == shape.total_params


def test_a_shard_does_not_keep_the_whole_weight_in_memory() -> None:
    part = shard(torch.zeros(8, 8), dim=0, rank=1, size=4)
    assert part.untyped_storage().nbytes() == 2 * 8 * 4
