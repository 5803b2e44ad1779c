"""How likely a layout fits: its predicted need beside the capacity, as outcomes have told or not.

P(fits) = Phi((offset + of its kernel - ln(need / capacity)) / sigma). From rows that ran and rows
that ran out of memory `fit_outcomes` learns all of these; elsewhere the offset is 0.
"""

import numpy as np

from scaling.foreign.arrays import Flags, Floats
from scaling.predict.cost.counted import counted_sigma
from scaling.predict.read.calibration import StackCalibration
from scaling.predict.read.features import Features, Group

# Kernels that may need more or less than what is counted: workspaces, and the releases of other
# software that came with them.
KERNELS = ("flash1", "math", "fused_softmax")
# Standard deviation of ln(need)'s error where no outcome tells: by data sheets; with a calibration
# on peaks; of this project's own engines, whose tensors are counted (how well: counted.py) and
# whose allocator is not.
# Judgement, near what published rows that ran and that did not leave open.
_SIGMA = {False: 0.14, True: 0.06}
_SIGMA_COUNTED = 0.05
# Of software that no entry of STACKS knows: whether it keeps fp32 gradients or gathered logits is a
# fifth of the need of many layouts.
_SIGMA_UNHEARD_OF = 0.2
# A layout is called a fit from these odds on. Learned from outcomes they are true odds, and a false
# fit is a lost job: over eight halves of published rows the need alone has 4.0 % false fits at a
# balanced accuracy of 0.954, even odds 3.2 % at 0.962, 0.6 has 2.6 % at 0.952. Between the two lies
# where held-back sizes lose no balanced accuracy.
EVEN, SURE_ENOUGH = 0.5, 0.55
# Of software unheard of a layout is called a fit up to 1.11 of the capacity: taken as such, LLaMA
# on A100 gains 1.3 points of balanced accuracy by it, on H100 over EFA loses 1.4, and of MPT's
# layouts, all of which ran, 4 % are called out of memory for 35.
_UNKNOWN_SOFTWARE = 0.3


def outcome_columns(f: Features) -> Floats:
    """1 where a layout runs the kernel, (n, len(KERNELS))."""
    return np.stack([np.asarray(getattr(f, name), dtype=np.float64) for name in KERNELS], axis=1)


def judged_by(
    group: Group, stack: StackCalibration | None, counted: Flags
) -> tuple[Floats, Floats, float]:
    """Deviation and offset of each layout, (n,), and the odds from which it is called a fit.

    Args:
        group: the layouts.
        stack: the calibration behind their predictions.
        counted: whose bytes are counted, not modelled.
    """
    f = group.features
    of_count: Floats | float = 0.0
    if counted.any():
        of_count = np.where(counted, counted_sigma(group.stack.name, f), 0.0)
    if stack is not None and stack.outcomes and stack.cluster == group.cluster_name:
        learned = stack.outcomes
        of_kernel = outcome_columns(f) @ [learned.get(name, 0.0) for name in KERNELS]
        sigma = np.hypot(np.full(len(f), learned["sigma"]), of_count)
        return sigma, learned["offset"] + of_kernel, SURE_ENOUGH
    if stack is None and not group.stack.name:
        return np.full(len(f), _SIGMA_UNHEARD_OF), np.zeros(len(f)), _UNKNOWN_SOFTWARE
    judged = stack is not None and stack.rows_out_of_memory + stack.rows_with_peak_memory > 0
    sigma = np.where(counted, min(_SIGMA_COUNTED, _SIGMA[judged]), _SIGMA[judged])
    return np.hypot(sigma, of_count), np.zeros(len(f)), EVEN
