"""Over how many ranks ZeRO spreads one copy of a model's state."""

from dataclasses import dataclass

import numpy as np

from scaling.arrays import Flags, Floats
from scaling.predict.read.features import Features, Group


@dataclass(frozen=True, slots=True)
class Sharding:
    """Numbers of ranks, (n,), with cp ranks: to ZeRO they are replicas too (DeepSpeed, FSDP).

    `replicas` ranks, `stride` apart, hold the same weights. `state` ranks share one copy of
    optimizer state, gradients and weights, as far as the stage shards them; 1 at stage 0. `updates`
    ranks divide a copy's update among them; more than `state` only where a pipeline deals optimizer
    state without ZeRO. `second` marks layouts that keep a second copy of the weights, shared by
    `inside` ranks (1: whole); elsewhere `inside` equals `state`.
    """

    replicas: Floats
    stride: Floats
    state: Floats
    updates: Floats
    inside: Floats
    second: Flags

    def weights_share(self, zero_stage: Floats) -> Floats:
        """Share of the weights that a rank holds, (n,)."""
        held = 1 / self.state + np.where(self.second, 1 / self.inside, 0.0)
        return np.where(zero_stage >= 3, held, 1.0)


def sharding_of(group: Group, f: Features) -> Sharding:
    """Sharding of everything but routed experts, by this software's meaning of `zero_shard_size`.

    Hybrid sharding (MiCS, arXiv 2205.00119; FSDP) spreads everything over `zero_shard_size` ranks
    only, and keeps a copy in each group of them. DeepSpeed's hpZ (arXiv 2306.10209, section 3.2)
    spreads the state over all ranks, and at zero_stage 3 keeps a second copy of the weights in each
    group.
    """
    return _sharded(group, f, f.dp * f.cp, f.shard * f.cp, f.tp)


def expert_sharding_of(group: Group, f: Features) -> Sharding:
    """Sharding of routed experts, over the ranks that hold the same ones among those of `shard`.

    These are all ranks of a stage over ep * etp.
    """
    replicas = f.dp * f.cp * f.tp / (f.ep * f.etp)
    return _sharded(group, f, replicas, np.maximum(replicas * f.shard / f.dp, 1.0), f.ep * f.etp)


def _sharded(
    group: Group, f: Features, replicas: Floats, inside: Floats, stride: Floats
) -> Sharding:
    """Sharding over `inside` ranks, or with a second copy over all `replicas`."""
    hpz = (f.zero_stage >= 3) & (f.shard < f.dp) & group.stack.second_copy
    state = np.where(f.zero_stage >= 1, np.where(hpz, replicas, inside), 1.0)
    dealt = (f.zero_stage == 0) & (f.pp > 1) & f.bf16 & group.stack.deals_bf16_pipelines
    return Sharding(
        replicas=replicas,
        stride=stride,
        state=state,
        updates=np.where(dealt, replicas, state),
        inside=np.where(f.zero_stage >= 1, inside, 1.0),
        second=hpz,
    )


def gradient_bytes(group: Group, f: Features) -> Floats:
    """Bytes of a weight's gradient, (n,): the software's, but never fewer than the weight's."""
    return np.maximum(group.stack.gradient_bytes, f.element_bytes)
