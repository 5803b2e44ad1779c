"""Hosts whose runs are slower than the noise allows: each becomes an unknown of the posterior."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from scaling.analyse.posterior import USUAL_NOISE, Integers
from scaling.arrays import Floats

FEWEST_RUNS = 3  # on a host, each compared with others
SLOWER = 0.02  # a smaller difference is nobody's fault
SURE = 0.99  # probability that no host is named by chance
_MAD = 1.4826  # standard deviations in a median absolute deviation
_MEDIAN = 1.2533  # standard error of a median over that of a mean


@dataclass(frozen=True, slots=True)
class SlowHost:
    """A named host: ln of its rate over that of others (below 0), and its runs compared."""

    host: str
    effect: float
    runs: int


def slow_in_runs(log_rates: Floats, groups: Integers, hosts: pa.ListArray) -> list[SlowHost]:
    """The hosts whose median residual is beyond the noise, the slowest first.

    A run's residual is its ln rate less the mean of its group's runs that were not on the host.
    Once a host is named its runs are left out, as hosts that shared them look slow too.

    Args:
        log_rates: ln tokens/s, or ln of its ratio to a prediction, (runs,).
        groups: runs of one group do the same work: a layout at a size, or by its ratio a size.
        hosts: names of the hosts of each run.
    """
    from scipy.special import stdtrit  # takes a quarter of a second, needed only with rows

    names = hosts.flatten().dictionary_encode()
    lengths = hosts.value_lengths().fill_null(0).to_numpy()
    on_host = np.zeros((len(names.dictionary), len(hosts)), dtype=bool)
    on_host[names.indices.to_numpy(), np.repeat(np.arange(len(hosts)), lengths)] = True
    left = np.ones(len(log_rates), dtype=bool)
    found: list[SlowHost] = []
    sure = 1 - (1 - SURE) / max(len(on_host), 1)
    while len(on_host) > 1 and left.any():
        noise = _noise(log_rates[left], groups[left])
        worst: tuple[float, int, float, int] | None = None
        for host, on in enumerate(on_host):
            off = ~on & left
            others = np.bincount(groups[off], minlength=int(groups.max()) + 1)
            means = np.bincount(groups[off], log_rates[off], minlength=len(others))
            compared = on & left & (others[groups] > 0)
            count = int(compared.sum())
            if count < FEWEST_RUNS:
                continue
            of = groups[compared]
            residuals = log_rates[compared] - means[of] / others[of]
            effect = float(np.median(residuals))
            single = np.sqrt(np.mean(1 + 1 / others[of]))  # of a residual, per noise of a run
            own = max(_MAD * float(np.median(np.abs(residuals - effect))), USUAL_NOISE * single)
            # by the noise of all runs, which the host itself may spread, or by its own residuals
            least = min(noise * single * stdtrit(1e6, sure), own * stdtrit(count - 1, sure))
            surprise = -effect / (_MEDIAN * least / np.sqrt(count))
            if effect < -SLOWER and surprise > 1 and (worst is None or surprise > worst[0]):
                worst = surprise, host, effect, count
        if worst is None:
            break
        _, host, effect, count = worst
        found.append(SlowHost(names.dictionary[host].as_py(), effect, count))
        left &= ~on_host[host]
    return sorted(found, key=lambda one: one.effect)


def _noise(log_rates: Floats, groups: Integers) -> float:
    """A robust standard deviation of runs about the mean of their group."""
    counts = np.bincount(groups)[groups]
    centred = log_rates - np.bincount(groups, log_rates)[groups] / counts
    several = counts > 1
    if not several.any():
        return np.inf
    scaled = np.abs(centred[several]) * np.sqrt(counts[several] / (counts[several] - 1))
    return max(_MAD * float(np.median(scaled)), USUAL_NOISE / 2)
