"""Over how many ranks ZeRO spreads one copy of a model's state."""

from dataclasses import dataclass

import numpy as np

from scaling.foreign.arrays import Flags, Floats
from scaling.predict.read.features import Features, Group


@dataclass(frozen=True, slots=True)
class Sharding:
    """Ranks, (n,), cp ranks included: to ZeRO they are replicas as well (DeepSpeed, FSDP).

    `state` hold one copy of optimizer state, gradients and weights, as far as the stage shards
    them; 1 at stage 0. `inside` hold one copy of what is gathered inside a group: the same ranks,
    but where `second` is set, those that share a second copy of the weights.
    """

    state: Floats
    inside: Floats
    second: Flags

    def weights_share(self, zero_stage: Floats) -> Floats:
        """Share of the weights that a rank holds, (n,)."""
        held = 1 / self.state + np.where(self.second, 1 / self.inside, 0.0)
        return np.where(zero_stage >= 3, held, 1.0)


def sharding_of(group: Group, f: Features) -> Sharding:
    """What `zero_shard_size` means under this software.

    Hybrid sharding (MiCS, arXiv 2205.00119; FSDP): everything is spread over these ranks only, and
    groups of them are copies of each other. DeepSpeed's hpZ (arXiv 2306.10209, section 3.2): the
    state stays spread over all, and zero_stage 3 keeps a second copy of the weights in each group.
    """
    shard = f.shard * f.cp
    second = (f.zero_stage >= 3) & (f.shard < f.dp) & group.stack.second_copy
    state = np.where(second, f.dp * f.cp, shard)
    return Sharding(
        state=np.where(f.zero_stage >= 1, state, 1.0),
        inside=np.where(f.zero_stage >= 1, shard, 1.0),
        second=second,
    )
