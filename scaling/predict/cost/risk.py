"""The costs of a layout beyond its likely time: stalls, and the figure that ranks layouts."""

from collections.abc import Mapping

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
_NEARLY_FULL_PENALTY = {True: 0.10, False: 0.0}


def expected_stall_s(group: Group, f: Features, p: Mapping[str, float]) -> Floats:
    """Seconds a step waits for messages where it almost surely does, else 0, (n,)."""
    chance, stall_s = stalls(group, f, p)
    return np.where(chance >= _EXPECTED, stall_s, 0.0)


def possible_stall_s(group: Group, f: Features, p: Mapping[str, float]) -> Floats:
    """Seconds of a stall that may well happen but is not expected, else 0, (n,)."""
    chance, stall_s = stalls(group, f, p)
    return np.where((chance > _POSSIBLE) & (chance < _EXPECTED), stall_s, 0.0)


def stall_sigma(group: Group, f: Features, p: Mapping[str, float], step_s: Floats) -> Floats:
    """Standard deviation of ln(step time) by stalls that may or may not happen, (n,).

    With probability p a step takes ln(1 + stall / step) longer on a logarithmic scale, which has
    the standard deviation sqrt(p (1 - p)) times that.
    """
    chance, stall_s = stalls(group, f, p)
    without_stall_s = np.maximum(step_s - expected_stall_s(group, f, p), 1e-9)
    sigma = np.log1p(stall_s / without_stall_s) * np.sqrt(chance * (1 - chance))
    return np.where((chance > _POSSIBLE) & (chance < _EXPECTED), sigma, 0.0)


def risk_adjusted_step_s(
    group: Group, f: Features, p: Mapping[str, float], step_s: Floats, memory_used: Floats
) -> Floats:
    """Seconds to rank layouts by, (n,): the predicted step and the mean cost of possible stalls.

    Args:
        group: software and cluster.
        f: the layouts.
        p: every parameter by name.
        step_s: predicted step time, (n,).
        memory_used: predicted need over capacity, (n,).
    """
    full = 1 / (1 + np.exp(-np.clip((memory_used - NEARLY_FULL) / 0.01, -50, 50)))
    retries = _NEARLY_FULL_PENALTY[group.cluster.lossy_transport] * full
    chance, stall_s = stalls(group, f, p)
    unexpected_s = np.where(chance < _EXPECTED, chance * stall_s, 0.0)
    return np.asarray(step_s * (1 + retries) + unexpected_s)


def stalls(group: Group, f: Features, p: Mapping[str, float]) -> tuple[Floats, Floats]:
    """How likely a step stalls at its micro-batches, and its seconds of stalls in all, (n,)."""
    if not group.cluster.lossy_transport:
        return np.zeros(len(f)), np.zeros(len(f))
    constant, doublings, without_zero = stall_terms(f)
    logit = p["stall_logit"] * constant + p["stall_logit_per_doubling"] * doublings
    logit = logit + p["stall_logit_without_zero"] * without_zero
    chance = np.where(crosses_nodes(f), 1 / (1 + np.exp(-logit)), 0.0)
    return chance, STALL_S * np.where(f.pp == 2, 0.5, 1.0) * f.accumulation


def crosses_nodes(f: Features) -> Flags:
    """Pipelines whose messages cross nodes, (n,)."""
    return (f.pp > 1) & (f.world_size > f.gpus_per_node)


def stall_terms(f: Features) -> tuple[Floats, Floats, Floats]:
    """The factors of STALL_ODDS, (n,) each."""
    doublings = np.log2(np.maximum(f.world_size / f.gpus_per_node, 1.0)) - 3
    prone = (f.zero_stage == 0) & (f.dp > 1) & (f.accumulation > _FEWEST_MICRO_BATCHES)
    return np.ones(len(f)), doublings, prone * np.maximum(1 + doublings / 5, 0.0)
