"""The costs of a layout beyond its likely time: stalls, and the figure that ranks layouts."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from scaling.arrays import Flags, Floats
from scaling.predict.read.features import Features, Group

# Over a lossy transport (EFA) a pipeline whose messages cross nodes can wait at every micro-batch:
# 0.53 s with two stages, 1.06 to 1.2 s with more, whatever the model. The cause is unknown.
STALL_S = 1.1
_FEWEST_MICRO_BATCHES = 8
# Above the first probability a stall is part of the predicted time; below the second it is left
# out of intervals, which hold 8 in 10.
_EXPECTED, _POSSIBLE = 0.9, 0.1
# Share of the memory above which the allocator may start to retry: over a lossy transport it did in
# 26 of 29 published rows; over InfiniBand rows as full ran as fast as predicted.
NEARLY_FULL = 0.93


class Stalls(NamedTuple):
    """How likely steps stall at their micro-batches, and the seconds of a step's stalls, (n,)."""

    chance: Floats
    seconds: Floats

    @property
    def expected_s(self) -> Floats:
        """Seconds that a step almost surely waits, else 0."""
        return np.where(self.chance >= _EXPECTED, self.seconds, 0.0)

    @property
    def possible_s(self) -> Floats:
        """Seconds that a step may well wait but is not expected to, else 0."""
        possible = (self.chance > _POSSIBLE) & (self.chance < _EXPECTED)
        return np.where(possible, self.seconds, 0.0)

    def sigma(self, step_s: Floats) -> Floats:
        """Standard deviation of ln(step time) by stalls that may happen.

        With probability p a step takes ln(1 + stall / step) longer on a logarithmic scale.
        """
        without_s = np.maximum(step_s - self.expected_s, 1e-9)
        spread = np.log1p(self.possible_s / without_s)
        return np.asarray(spread * np.sqrt(self.chance * (1 - self.chance)))

    def ranked_s(self, step_s: Floats) -> Floats:
        """Seconds to rank layouts by: the predicted step and the mean cost of possible stalls."""
        unexpected_s = np.where(self.chance < _EXPECTED, self.chance * self.seconds, 0.0)
        return np.asarray(step_s + unexpected_s)


def stalls_of(group: Group, f: Features, p: Mapping[str, float]) -> Stalls:
    """Stalls of pipelines over nodes of a lossy transport, none elsewhere."""
    if not group.cluster.lossy_transport:
        return Stalls(np.zeros(len(f)), np.zeros(len(f)))
    logit = np.asarray(sum(p[name] * term for name, term in stall_terms(f).items()))
    chance = np.where(crosses_nodes(f), 1 / (1 + np.exp(-logit)), 0.0)
    return Stalls(chance, STALL_S * np.where(f.pp == 2, 0.5, 1.0) * f.accumulation)


def crosses_nodes(f: Features) -> Flags:
    """Pipelines whose messages cross nodes, (n,)."""
    return (f.pp > 1) & (f.world_size > f.gpus_per_node)


def stall_terms(f: Features) -> dict[str, Floats]:
    """The factors of STALL_ODDS, (n,) each."""
    doublings = np.log2(np.maximum(f.world_size / f.gpus_per_node, 1.0)) - 3
    prone = (f.zero_stage == 0) & (f.dp > 1) & (f.accumulation > _FEWEST_MICRO_BATCHES)
    return {
        "stall_logit": np.ones(len(f)),
        "stall_logit_per_doubling": doublings,
        "stall_logit_without_zero": prone * np.maximum(1 + doublings / 5, 0.0),
    }
