"""Slow hosts, by their runs or by their probes: each becomes an unknown of the posterior."""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scaling.analyse.posterior import USUAL_NOISE, Integers
from scaling.arrays import Floats
from scaling.record.probe_row import Probe, fields_asked

FEWEST_RUNS = 3  # on a host, each compared with others
SLOWER = 0.02  # a smaller difference is nobody's fault
SURE = 0.99  # probability that no host is named by chance
# Healthy GPUs of one kind differ too: power limits and silicon spread SGEMM by 8 % on average and
# by 22 % at most over five clusters (Sinha et al., Not All GPUs Are Created Equal, SC 2022). This
# does not explain a whole node that is 1.2 x slower than the median of its peers.
SLOW_FROM = 1.2
_MAD = 1.4826  # standard deviations in a median absolute deviation
_MEDIAN = 1.2533  # standard error of a median over that of a mean


@dataclass(frozen=True, slots=True)
class SlowHost:
    """A named host. slowdown: its time over that of others.   count: runs, or probes, compared.

    kind: of probe, or "runs".
    """

    host: str
    slowdown: float
    count: int
    kind: str = "runs"

    @property
    def effect(self) -> float:
        """Its part of ln tokens/s, below 0."""
        return -math.log(self.slowdown)


def named_hosts(runs: pa.Table, probes: Iterable[Probe]) -> dict[str, list[SlowHost]]:
    """By cluster the hosts that are slow by their runs, then those that are by probes alone."""
    named: dict[str, list[SlowHost]] = {}
    for cluster in sorted(runs["cluster"].unique().to_pylist()):
        of_cluster = runs.filter(pc.equal(runs["cluster"], cluster))
        rate, group = "log_rate", "cell_id"
        if pc.count_distinct(of_cluster[group]).as_py() == len(of_cluster):  # no repeats
            rate, group = "gap", "size_id"
            of_cluster = of_cluster.filter(pc.is_valid(of_cluster[rate]))
        groups = np.unique(of_cluster[group].to_numpy(), return_inverse=True)[1]
        hosts = of_cluster["hosts"].combine_chunks()
        named[cluster] = slow_in_runs(of_cluster[rate].to_numpy(), groups, hosts)
    of_clusters: dict[str, list[Probe]] = {}
    for probe in probes:
        of_clusters.setdefault(probe.cluster, []).append(probe)
    for cluster, of in of_clusters.items():
        known = named.setdefault(cluster, [])
        for one in slow_in_probes(of):
            if one.host not in {other.host for other in known}:
                known.append(one)
    return named


def slow_in_probes(probes: Iterable[Probe]) -> list[SlowHost]:
    """The hosts whose median slowdown at a kind of work is at least `SLOW_FROM`, worst first.

    The median is over tasks, so that a single disturbed probe has no effect. Messages between two
    hosts count for each by its best pair, because a healthy host is slow only beside a slow one.
    """
    asked = attrgetter(*fields_asked())
    best: dict[tuple[str, str, Any], float] = {}
    for one in probes:
        for host in (one.host, one.peer_host):
            if host is not None and one.slowdown is not None:
                task = host, one.kind, asked(one)
                best[task] = min(best.get(task, np.inf), one.slowdown)
    of_kind: dict[tuple[str, str], list[float]] = {}
    for (host, kind, _), slowdown in best.items():
        of_kind.setdefault((host, kind), []).append(slowdown)
    slow = [
        SlowHost(host, median, len(slowdowns), kind)
        for (host, kind), slowdowns in of_kind.items()
        if (median := statistics.median(slowdowns)) >= SLOW_FROM
    ]
    return sorted(slow, key=attrgetter("effect"))


def slow_in_runs(log_rates: Floats, groups: Integers, hosts: pa.ListArray) -> list[SlowHost]:
    """The hosts whose median residual is beyond the noise, the slowest first.

    A run's residual is its ln rate less the mean of its group's runs that were not on the host.
    Once a host is named its runs are left out, as hosts that shared them look slow too.

    Args:
        log_rates: ln tokens/s, or ln of its ratio to a prediction, (runs,).
        groups: runs of one group do the same work: a layout at a size, or by its ratio a size.
        hosts: names of the hosts of each run.
    """
    from scipy.special import ndtri  # takes a quarter of a second, needed only with rows

    names, lengths = hosts.flatten().dictionary_encode(), hosts.value_lengths().fill_null(0)
    on_host = np.zeros((len(names.dictionary), len(hosts)), dtype=bool)
    on_host[names.indices.to_numpy(), np.repeat(np.arange(len(hosts)), lengths.to_numpy())] = True
    sure = 1 - (1 - SURE) / max(len(on_host), 1)
    left, found = np.ones(len(log_rates), dtype=bool), []
    while len(on_host) > 1 and left.any():
        candidates = []
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
            noise = _noise((log_rates - effect * on)[left], groups[left])  # without the host's part
            surprise = -effect * np.sqrt(count) / (_MEDIAN * noise * single * ndtri(sure))
            if effect < -SLOWER and surprise > 1:
                candidates.append((surprise, host, effect, count))
        if not candidates:
            break
        _, host, effect, count = max(candidates)
        found.append(SlowHost(names.dictionary[host].as_py(), math.exp(-effect), count))
        left &= ~on_host[host]
    return sorted(found, key=attrgetter("effect"))


def _noise(log_rates: Floats, groups: Integers) -> float:
    """A robust standard deviation of runs about the mean of their group."""
    counts = np.bincount(groups)[groups]
    centred = log_rates - np.bincount(groups, log_rates)[groups] / counts
    scaled = np.abs(centred) * np.sqrt(counts / np.maximum(counts - 1, 1))
    several = scaled[counts > 1]
    return max(_MAD * float(np.median(several)), USUAL_NOISE / 2) if len(several) else np.inf
