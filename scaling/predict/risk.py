"""What a layout may cost beyond its likely time: the figure layouts are ranked by."""

import numpy as np

from scaling.predict.columns import Floats
from scaling.predict.features import Features, Group

# A pipeline whose messages cross nodes over a lossy transport now and then waits about a second
# at every micro-batch. Seen in 41 of 58 published rows with zero_stage 0 and dp > 1, and in about
# one of twelve others (one measured step a row, 8 to 64 H100 over EFA); half as long with pp = 2.
_STALL_S = 1.1
_CHANCE_ZERO_0 = 0.6
_CHANCE = 0.08
# Above this share of the memory the allocator may start to retry: over a lossy transport it did in
# 26 of 29 published rows, over InfiniBand rows as full ran as fast as predicted.
NEARLY_FULL = 0.93
_NEARLY_FULL_PENALTY = {True: 0.10, False: 0.0}


def ranked_by(group: Group, f: Features, step_s: Floats, memory_used: Floats) -> Floats:
    """Seconds to rank layouts by, (n,): the predicted step, plus what it may cost on a bad day.

    Args:
        group: software and cluster.
        f: the layouts.
        step_s: predicted step time, (n,).
        memory_used: predicted need over capacity, (n,).
    """
    full = 1 / (1 + np.exp(-np.clip((memory_used - NEARLY_FULL) / 0.01, -50, 50)))
    crowded = _NEARLY_FULL_PENALTY[group.fabric.lossy_transport] * full
    chance, stall_s = _stalls(group, f)
    return np.asarray(step_s * (1 + crowded) + chance * stall_s)


def likely_stall_s(group: Group, f: Features) -> Floats:
    """Seconds of a stall that more than one run in ten meets, 0 for the other layouts, (n,)."""
    chance, stall_s = _stalls(group, f)
    return np.where(chance > 0.1, stall_s, 0.0)


def _stalls(group: Group, f: Features) -> tuple[Floats, Floats]:
    """How likely a step stalls at its micro-batches, and how long it then waits in all."""
    if not group.fabric.lossy_transport:
        return np.zeros(len(f)), np.zeros(len(f))
    crossing = (f.pp > 1) & (f.world_size > f.gpus_per_node)
    chance = np.where((f.zero_stage == 0) & (f.dp > 1), _CHANCE_ZERO_0, _CHANCE)
    quantum = _STALL_S * np.where(f.pp == 2, 0.5, 1.0)
    return np.where(crossing, chance, 0.0), quantum * f.accumulation
