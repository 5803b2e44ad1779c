"""How likely a layout fits into a GPU's memory, given its predicted need.

P(fits) = Phi((offset + kernel offsets - ln(need / capacity)) / sigma). `fit_outcomes` learns all of
these from rows that ran and rows that ran out of memory; without such rows the offsets are 0.

For this project's engines, sigma includes the error of the memory count itself. The table
counted.json has it by kind of layout, from the random layouts in benchmarks/results;
`python benchmarks/memory.py --known --spread` writes it.
"""

import functools
import importlib.resources
import json

import numpy as np
import numpy.typing as npt

from scaling.foreign.arrays import Flags, Floats
from scaling.predict.read.calibration import StackCalibration
from scaling.predict.read.features import Features, Group
from scaling.predict.read.inputs import SCHEDULES

# Attention kernels that may need more or less than what is counted: because of their workspaces,
# or because other releases of the software came with them.
KERNELS = ("flash1", "math", "fused_softmax")
# Standard deviation of ln(need)'s error where no outcome is known: without calibration, and with
# one on peak memory. Judgement, near what published rows that ran and that did not leave open.
_SIGMA = {False: 0.14, True: 0.06}
# The same of this project's engines, whose tensors are counted but whose allocator is not.
_SIGMA_COUNTED = 0.05
# The same of unknown software: whether it keeps fp32 gradients or gathers logits is a fifth of the
# need of many layouts.
_SIGMA_UNKNOWN_SOFTWARE = 0.2
# P(fits) from which a layout is called a fit. Odds learned from outcomes are true odds, and a false
# fit is a lost job: over eight halves of published rows the need alone has 4.0 % false fits at a
# balanced accuracy of 0.954, a threshold of 0.5 has 3.2 % at 0.962, and 0.6 has 2.6 % at 0.952. The
# value between them loses no balanced accuracy at held-back sizes.
EVEN_ODDS, LEARNED_ODDS = 0.5, 0.55
# Of unknown software a layout is called a fit up to a need of 1.11 of the capacity. Tried on known
# tables as if their software were unknown, this gains 1.3 points of balanced accuracy on LLaMA on
# A100, loses 1.4 on H100 over EFA, and calls 4 % instead of 35 % of MPT's layouts, all of which
# ran, out of memory.
_ODDS_UNKNOWN_SOFTWARE = 0.3

TABLE = "counted.json"
LAYOUT_KINDS = (
    "zero_stage 0 to 2",
    "zero_stage 3",
    "8 bits under cp",
    "experts",
    "pipelines of experts, 1f1b",
    *(f"pipelines, {schedule}" for schedule in SCHEDULES),
)
# A kind with few layouts is pulled towards all of them, as if it had this many more of average
# error.
_PRIOR_LAYOUTS = 4


def kernel_columns(f: Features) -> Floats:
    """1 where a layout runs the kernel, (n, len(KERNELS))."""
    return np.stack([np.asarray(getattr(f, name), dtype=np.float64) for name in KERNELS], axis=1)


def fit_odds(
    group: Group, stack: StackCalibration | None, counted: Flags
) -> tuple[Floats, Floats, float]:
    """Sigma and offset of each layout, (n,), and the P(fits) from which it is called a fit.

    Args:
        group: the layouts.
        stack: the calibration behind their predictions.
        counted: mask, (n,): memory is counted tensor by tensor, not modelled.
    """
    f = group.features
    count_sigma: Floats | float = 0.0
    if counted.any():
        count_sigma = np.where(counted, counted_sigma(group.stack.name, f), 0.0)
    if stack is not None and stack.outcomes and stack.cluster == group.cluster_name:
        learned = stack.outcomes
        kernel_offset = kernel_columns(f) @ [learned.get(name, 0.0) for name in KERNELS]
        sigma = np.hypot(np.full(len(f), learned["sigma"]), count_sigma)
        return sigma, learned["offset"] + kernel_offset, LEARNED_ODDS
    if stack is None and not group.stack.name:
        return np.full(len(f), _SIGMA_UNKNOWN_SOFTWARE), np.zeros(len(f)), _ODDS_UNKNOWN_SOFTWARE
    calibrated = stack is not None and stack.rows_out_of_memory + stack.rows_with_peak_memory > 0
    sigma = np.where(counted, min(_SIGMA_COUNTED, _SIGMA[calibrated]), _SIGMA[calibrated])
    return np.hypot(sigma, count_sigma), np.zeros(len(f)), EVEN_ODDS


def kinds_of(f: Features) -> npt.NDArray[np.int64]:
    """Index into LAYOUT_KINDS of each layout, (n,); the later one where two apply."""
    kinds = (f.zero_stage >= 3).astype(np.int64)
    kinds[(f.cast_bytes > 0) & (f.cp > 1)] = 2
    kinds[f.num_experts > 1] = 3
    piped = f.pp > 1
    kinds[piped] = np.where((kinds == 3) & (f.schedule == 0), 4, 5 + f.schedule)[piped]
    return kinds


def sigma_by_kind(errors: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Standard deviation of ln(counted / exact) and number of layouts of each kind."""
    prior = _PRIOR_LAYOUTS * np.mean(np.square([e for kind in errors.values() for e in kind]))
    table = {}
    for kind, values in sorted(errors.items()):
        variance = (np.sum(np.square(values)) + prior) / (len(values) + _PRIOR_LAYOUTS)
        table[kind] = {"layouts": len(values), "sigma": round(variance**0.5, 4)}
    return table


def counted_sigma(framework: str, f: Features) -> Floats:
    """Standard deviation of ln(counted memory)'s error, (n,).

    Args:
        framework: the name that the prediction has for one of this project's engines.
        f: the layouts; a kind without random layouts gets the largest sigma.
    """
    table = _sigma_table()[framework]
    largest = max(table.values())
    return np.array([table.get(kind, largest) for kind in LAYOUT_KINDS])[kinds_of(f)]


@functools.cache
def _sigma_table() -> dict[str, dict[str, float]]:
    text = importlib.resources.files(__package__).joinpath(TABLE).read_text(encoding="utf-8")
    return {
        framework: {kind: entry["sigma"] for kind, entry in kinds.items()}
        for framework, kinds in json.loads(text).items()
    }
