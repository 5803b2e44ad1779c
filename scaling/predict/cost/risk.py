"""What a layout may cost beyond its likely time: stalls, and the figure that ranks layouts."""

import numpy as np

from scaling.arrays import Floats
from scaling.predict.read.features import Features, Group

# Over a lossy transport (EFA) a pipeline whose messages cross nodes can wait at every micro-batch:
# 0.53 s with two stages, 1.06 to 1.2 s with more, whatever the model. The cause is unknown.
# In the published sweep, of rows with nanotron, zero_stage 0, dp > 1 and more than 8 micro-batches
# 3 of 10 stall on two nodes, 13 of 18 on four, 25 of 25 on eight. Of other crossing pipelines with
# tp inside a node 2 of 67 stall on two nodes, 2 of 104 on four, 6 of 134 on eight; by depth 3 of
# 153 with two stages, 7 of 152 with more. The odds on eight nodes, e^-3 to 1, are those 6 of 134.
# Half a logit per doubling lies between what these counts say alone (0.3) and what zero_stage 0
# says (1.5).
STALL_S = 1.1
_FEWEST_MICRO_BATCHES = 8
_CHANCE_BY_LOG2_NODES = ([1.0, 2.0, 3.0], [0.33, 0.75, 0.95])
_LOGIT_ON_EIGHT_NODES, _LOGIT_PER_DOUBLING, _LOGIT_OF_DEPTH = -3.5, 0.5, 0.5
# From these odds on a stall is expected, and part of the predicted time; below the others it is
# left out of intervals, which hold 8 in 10.
_EXPECTED, _POSSIBLE = 0.9, 0.1
# Share of the memory above which the allocator may start to retry: over a lossy transport it did in
# 26 of 29 published rows; over InfiniBand rows as full ran as fast as predicted.
NEARLY_FULL = 0.93
_NEARLY_FULL_PENALTY = {True: 0.10, False: 0.0}


def expected_stall_s(group: Group, f: Features) -> Floats:
    """Seconds a step waits for messages where it almost surely does, else 0, (n,)."""
    chance, stall_s = _stalls(group, f)
    return np.where(chance >= _EXPECTED, stall_s, 0.0)


def possible_stall_s(group: Group, f: Features) -> Floats:
    """Seconds of a stall that may well happen but is not expected, else 0, (n,)."""
    chance, stall_s = _stalls(group, f)
    return np.where((chance > _POSSIBLE) & (chance < _EXPECTED), stall_s, 0.0)


def stall_sigma(group: Group, f: Features, step_s: Floats) -> Floats:
    """Standard deviation of ln(step time) by stalls that may or may not happen, (n,).

    With odds p a step takes ln(1 + stall / step) longer on a logarithmic scale, which has the
    standard deviation sqrt(p (1 - p)) times that.
    """
    chance, stall_s = _stalls(group, f)
    without_stall_s = np.maximum(step_s - expected_stall_s(group, f), 1e-9)
    sigma = np.log1p(stall_s / without_stall_s) * np.sqrt(chance * (1 - chance))
    return np.where((chance > _POSSIBLE) & (chance < _EXPECTED), sigma, 0.0)


def risk_adjusted_step_s(group: Group, f: Features, step_s: Floats, memory_used: Floats) -> Floats:
    """Seconds to rank layouts by, (n,): the predicted step and the mean cost of possible stalls.

    Args:
        group: software and cluster.
        f: the layouts.
        step_s: predicted step time, (n,).
        memory_used: predicted need over capacity, (n,).
    """
    full = 1 / (1 + np.exp(-np.clip((memory_used - NEARLY_FULL) / 0.01, -50, 50)))
    retries = _NEARLY_FULL_PENALTY[group.cluster.lossy_transport] * full
    chance, stall_s = _stalls(group, f)
    unexpected_s = np.where(chance < _EXPECTED, chance * stall_s, 0.0)
    return np.asarray(step_s * (1 + retries) + unexpected_s)


def _stalls(group: Group, f: Features) -> tuple[Floats, Floats]:
    """How likely a step stalls at its micro-batches, and its seconds of stalls in all, (n,)."""
    if not group.cluster.lossy_transport:
        return np.zeros(len(f)), np.zeros(len(f))
    nodes = f.world_size / f.gpus_per_node
    crossing = (f.pp > 1) & (nodes > 1)
    doublings = np.log2(np.maximum(nodes, 1.0))
    logit = _LOGIT_ON_EIGHT_NODES + _LOGIT_PER_DOUBLING * (doublings - 3)
    logit = logit + np.where(f.pp > 2, _LOGIT_OF_DEPTH, 0.0)
    chance = np.where(crossing, 1 / (1 + np.exp(-logit)), 0.0)
    often = np.interp(doublings, *_CHANCE_BY_LOG2_NODES)
    prone = crossing & (f.zero_stage == 0) & (f.dp > 1)
    chance = np.where(prone & (f.accumulation > _FEWEST_MICRO_BATCHES), often, chance)
    return chance, STALL_S * np.where(f.pp == 2, 0.5, 1.0) * f.accumulation
