"""What a layout may cost beyond its likely time: stalls, and the figure layouts are ranked by."""

import numpy as np

from scaling.foreign.arrays import Floats
from scaling.predict.read.features import Features, Group

# Over a lossy transport (EFA) a pipeline whose messages cross nodes can wait at every micro-batch:
# 0.53 s with two stages, 1.06 to 1.2 s with more, whatever the model. Rows of the published sweep
# with nanotron, zero_stage 0, dp > 1 and more than 8 micro-batches that do: 3 of 10 on two nodes,
# 13 of 18 on four, 25 of 25 on eight. Of other crossing pipelines with tp inside a node 2 of 67 on
# two, 2 of 104 on four, 6 of 134 on eight nodes, by depth 3 of 153 with two stages, 7 of 152 with
# more. The cause is unknown. What eight nodes show, e^-3 to 1, is 6 of 134; that it grows by half a
# logit a doubling lies between what those counts say alone (0.3) and what zero_stage 0 says (1.5).
_STALL_S = 1.1
_FEWEST_MICRO_BATCHES = 8
_CHANCE_BY_LOG2_NODES = ([1.0, 2.0, 3.0], [0.33, 0.75, 0.95])
_LOGIT_ON_EIGHT_NODES, _LOGIT_A_DOUBLING, _LOGIT_OF_DEPTH = -3.5, 0.5, 0.5
# From here on a stall is what to expect, and part of the predicted time.
_EXPECTED = 0.9
# Above this share of the memory the allocator may start to retry: over a lossy transport it did in
# 26 of 29 published rows, over InfiniBand rows as full ran as fast as predicted.
NEARLY_FULL = 0.93
_NEARLY_FULL_PENALTY = {True: 0.10, False: 0.0}


def expected_stall_s(group: Group, f: Features) -> Floats:
    """Seconds a step waits for messages when it almost surely does, else 0, (n,)."""
    chance, stall_s = _stalls(group, f)
    return np.where(chance >= _EXPECTED, stall_s, 0.0)


def possible_stall_s(group: Group, f: Features) -> Floats:
    """Seconds of a stall that may well happen but is not expected, 0 for other layouts, (n,)."""
    chance, stall_s = _stalls(group, f)
    return np.where((chance > 0.1) & (chance < _EXPECTED), stall_s, 0.0)


def stall_sigma(group: Group, f: Features, step_s: Floats) -> Floats:
    """Standard deviation of ln(step time) by which a stall may come or stay away, (n,).

    A step that stalls with odds p takes ln(1 + stall / step) longer on a logarithmic scale:
    sqrt(p (1 - p)) of that. Odds that lie outside of 8 in 10 on either side move no interval.
    """
    chance, stall_s = _stalls(group, f)
    calm_s = np.maximum(step_s - expected_stall_s(group, f), 1e-9)
    longer = np.log1p(stall_s / calm_s) * np.sqrt(chance * (1 - chance))
    return np.where((chance > 0.1) & (chance < 0.9), longer, 0.0)


def risk_adjusted_step_s(group: Group, f: Features, step_s: Floats, memory_used: Floats) -> Floats:
    """Seconds to rank layouts by, (n,): the predicted step, plus what it may cost on a bad day.

    Args:
        group: software and cluster.
        f: the layouts.
        step_s: predicted step time, (n,).
        memory_used: predicted need over capacity, (n,).
    """
    full = 1 / (1 + np.exp(-np.clip((memory_used - NEARLY_FULL) / 0.01, -50, 50)))
    crowded = _NEARLY_FULL_PENALTY[group.cluster.lossy_transport] * full
    chance, stall_s = _stalls(group, f)
    risk_s = np.where(chance < _EXPECTED, chance * stall_s, 0.0)
    return np.asarray(step_s * (1 + crowded) + risk_s)


def _stalls(group: Group, f: Features) -> tuple[Floats, Floats]:
    """How likely a step waits at its micro-batches, and how long it then waits in all."""
    if not group.cluster.lossy_transport:
        return np.zeros(len(f)), np.zeros(len(f))
    nodes = f.world_size / f.gpus_per_node
    crossing = (f.pp > 1) & (nodes > 1)
    doublings = np.log2(np.maximum(nodes, 1.0))
    logit = _LOGIT_ON_EIGHT_NODES + _LOGIT_A_DOUBLING * (doublings - 3)
    logit = logit + np.where(f.pp > 2, _LOGIT_OF_DEPTH, 0.0)
    chance = np.where(crossing, 1 / (1 + np.exp(-logit)), 0.0)
    if group.stack.stalls_without_zero:
        often = np.interp(doublings, *_CHANCE_BY_LOG2_NODES)
        prone = crossing & (f.zero_stage == 0) & (f.dp > 1)
        chance = np.where(prone & (f.accumulation > _FEWEST_MICRO_BATCHES), often, chance)
    return chance, _STALL_S * np.where(f.pp == 2, 0.5, 1.0) * f.accumulation
