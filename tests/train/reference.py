"""The same training in one process, without an engine; test_oracles holds its model to others'."""

import functools
from typing import Any

import torch

from scaling.check import training
from tests.points import LEARNING_RATE

CPU = torch.device("cpu")
Curves = list[dict[str, Any]]  # of each rank: what its act returned, or the error
Curve = training.Curve
reference_curve = functools.partial(
    training.reference_curve, device=CPU, learning_rate=LEARNING_RATE
)
