"""Gunther's universal scalability law (arXiv 0808.1431) through the advised rates of a group.

    N / T = (1 + s (N - 1) + k N (N - 1)) / t1

with T tokens/s on N GPUs, t1 tokens/s of one GPU, s the serial share and k the cost of
coordination. Written so, it is linear in 1 / t1, s / t1 and k / t1: one non-negative least-squares
problem for each draw of the rates.
"""

import numpy as np
from scipy.optimize import nnls

from scaling.arrays import Floats

LEAST_SIZES = 4
_REFITS = 200
_FARTHEST = 1000  # times the largest size: a peak beyond is null


def usl(sizes: Floats, rates: Floats) -> dict[str, Floats]:
    """Draws of `t1` (tokens/s), `serial`, `coherency` and `peak_world_size`, (draws,) each.

    NaN where the draw leaves t1 undetermined; the peak is infinite where the law never falls.

    Args:
        sizes: GPUs, (n,).
        rates: draws of ln tokens/s, (n, draws).
    """
    basis = np.stack([np.ones_like(sizes), sizes - 1, sizes * (sizes - 1)], axis=1)
    targets = sizes / np.exp(rates.T)
    fits = np.stack([nnls(basis / target[:, None], np.ones_like(sizes))[0] for target in targets])
    with np.errstate(divide="ignore", invalid="ignore"):
        t1 = np.where(fits[:, 0] > 0, 1 / fits[:, 0], np.nan)
        serial, coherency = fits[:, 1] * t1, fits[:, 2] * t1
        peak = np.sqrt(np.maximum(1 - serial, 0) / coherency)
    peak[peak > _FARTHEST * sizes[-1]] = np.inf
    return {"t1": t1, "serial": serial, "coherency": coherency, "peak_world_size": peak}


def law_of(sizes: Floats, rates: Floats) -> dict[str, float | None]:
    """The law through the mean rates, and the 95 % interval of each parameter from the draws."""
    mean = rates.mean(axis=1)
    half = rates.shape[1] // 2
    picked = np.linspace(0, half - 1, min(_REFITS, half), dtype=int)
    drawn = usl(sizes, rates[:, np.r_[picked, picked + half]])
    record: dict[str, float | None] = {}
    for name, values in usl(sizes, mean[:, None]).items():
        known = drawn[name][~np.isnan(drawn[name])]
        ends = np.quantile(known, [0.025, 0.975], method="nearest") if len(known) else [None, None]
        columns = (name, f"{name}_low", f"{name}_high")
        for column, value in zip(columns, [values[0], *ends], strict=True):
            record[column] = float(value) if value is not None and np.isfinite(value) else None
    if record["t1"] is not None:
        t1, serial, coherency = (float(record[n] or 0) for n in ("t1", "serial", "coherency"))
        fitted = sizes * t1 / (1 + serial * (sizes - 1) + coherency * sizes * (sizes - 1))
        record["fit_error"] = float(np.mean(np.abs(fitted / np.exp(mean) - 1)))
    return record
