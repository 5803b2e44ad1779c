"""What the software of a foreign row does by itself: by name, release, and what is unsaid."""

import numpy as np

from scaling.foreign.arrays import Flags, Floats, Words
from scaling.foreign.columns import Columns
from scaling.predict.read.inputs import OWN_FRAMEWORK
from scaling.predict.read.stacks import stack_of, with_release


def frameworks_of(columns: Columns) -> Words:
    """Each row's framework, with its release where that changes what is known of it, (n,)."""
    framework = columns.words("framework", OWN_FRAMEWORK)
    release = columns.words("release", "")
    named = {
        pair: with_release(*pair)
        for pair in dict.fromkeys(zip(framework.tolist(), release.tolist(), strict=True))
    }
    pairs = zip(framework.tolist(), release.tolist(), strict=True)
    return np.array([named[pair] for pair in pairs], dtype=object)


def recomputes(columns: Columns, framework: Words) -> Flags:
    """Rows that do not say what they recompute, of software that is told module by module, (n,)."""
    name = "activation_checkpointing"
    told = columns.given(name) if name in columns else np.zeros(len(columns), dtype=bool)
    can = {each: stack_of(each).recomputes_modules for each in set(framework.tolist())}
    chosen: Flags = np.array([can[each] for each in framework.tolist()], dtype=bool) & ~told
    if chosen.any():
        columns.assumptions.append(
            f"{name} is not given in {int(chosen.sum())} rows of software that recomputes single "
            "modules: taken as what their memory asks for"
        )
    return chosen


def expert_slices(columns: Columns, tp: Floats) -> Floats:
    """Ranks that share one expert, (n,): all of a tp group without ep, else 1 (Megatron, FSDP)."""
    stated = columns.counts("etp")
    dealt = columns.counts("ep", default=1.0, plain=True) > 1
    return np.where(np.isnan(stated), np.where(dealt, 1.0, tp), stated)
