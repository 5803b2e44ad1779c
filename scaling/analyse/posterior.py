"""Draws of the rates of one comparison group: every interval of a report is a quantile of them.

Run j of cell i (a layout at a size, in one software stack) on hosts H:

    y_j = ln tokens/s = mu_i + h(slowest named host of H) + noise,   noise ~ N(0, s^2 + own_j^2)

or else the run was disturbed, and says nothing: its y_j may be anything in a range of 2 ln LARGEST.
At least one run of each cell was not. The chance of any run to be disturbed is DISTURBED. So a
cell sums over the sets of its runs that may be the sound ones. This is the mixture of Box and Tiao
(A Bayesian Approach to Some Outlier Problems, Biometrika 55, 1968). If two runs disagree by far,
either may be the sound one, and the cell has two likely rates.

own_j is known: the standard error of the run's own step time. s, the standard deviation between
sound runs of one cell, is unknown and shared by the group. The prior of ln s has the median
ln USUAL_NOISE. Below it is normal: a few equal runs are not without noise. Above it is Student's t:
a few noisy runs outweigh it. mu is flat. h ~ N(e, HOST_SPREAD^2) for each host that probes or other
runs name as slow by e.

A cell that did not run has a prediction p_i with four independent errors, of known sizes:

    mu_i = p_i + common + layout(l) + size(n) + rest(i)

The errors of predictions of the cells that ran tell the first three. Predictions
never change the rate of a cell that ran.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scaling.arrays import Flags, Floats

Integers = npt.NDArray[np.integer[Any]]

USUAL_NOISE = 0.012  # published repeats of one layout differ by 0.1 to 1.4 %
NOISE_SPREAD = 0.5  # of ln s: a factor of two either way
NOISE_FREEDOM = 6  # of Student's t
HOST_SPREAD = 0.10  # what a named host may differ by
DISTURBED = 0.01  # chance of a run; none of about 100 published repeats was disturbed.
LARGEST = 4.7  # the worst published single steps differ from their repeats by this ratio.
CLOSE = 0.05  # the order of layouts is open if several are the best with this probability
# Standard error of ln rate of a single run that states none: it may be a single step, and published
# sweeps of single steps repeat within 5 % at best.
UNSTATED = 0.0176
NO_HOSTS = np.empty(0)
PARTS = ("common", "layout", "size", "rest")  # of the error of a prediction
_SEED = 20_200  # fixed, so that the same rows give the same numbers
_MOST_DRAWS, _FEWEST_DRAWS = 4000, 400
_MOST_VALUES = 1 << 23  # of draws held in memory at a time
_LEAST_REST = 1e-3  # of the rest of a prediction's error
_LEAST_CHANCE = 1e-3  # of a set of sound runs; one draw in a thousand moves no interval
_MOST_DISTURBED = 8  # of a cell's runs
_HOST_STEPS = 3


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of a group, each array (runs,).

    log_rate: ln tokens/s.   own_sigma: its standard error within the run, NaN if it states none.
    cell: index of the cell.   host: index of the slowest named host it used, or -1.
    """

    log_rate: Floats
    own_sigma: Floats
    cell: Integers
    host: Integers


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of a group, each array (cells,).

    layout, size: indices.   predicted: ln tokens/s, NaN without a prediction.
    errors: standard deviations of the prediction's parts, (cells, 4) in the order of PARTS.
    """

    layout: Integers
    size: Integers
    predicted: Floats
    errors: Floats


@dataclass(frozen=True, slots=True)
class Posterior:
    """Draws of a group.

    rates: ln tokens/s, (cells, draws); NaN for a cell with neither a run nor a prediction.
    noise: s, (draws,).   hosts: what each named host adds to ln tokens/s, (hosts, draws).
    disturbed: the probability of each run that it was, (runs,).
    """

    rates: Floats
    noise: Floats
    hosts: Floats
    disturbed: Floats


def posterior(
    runs: Runs, cells: Cells, hosts: Floats = NO_HOSTS, draws: int = _MOST_DRAWS
) -> Posterior:
    """Draws of the rates of a group; the second half of each is the mirror of the first.

    Mirrored draws have the exact mean, so a rate without an error of its own is its measured one.
    `hosts`: what each named host seems to add to ln tokens/s.   `draws`: at most.
    """
    random = np.random.default_rng(_SEED)
    count = int(np.clip(_MOST_VALUES // max(len(cells.layout), 1), _FEWEST_DRAWS, draws))
    count -= count % 2
    ran, cell = np.unique(runs.cell, return_inverse=True)
    rates: Floats = np.full((len(cells.layout), count), np.nan)
    noise: Floats = np.full(count, np.nan)
    effects: Floats = np.zeros((len(hosts), count))
    disturbed: Floats = np.zeros(len(runs.cell))
    if len(ran):
        corrected = runs.log_rate - np.append(hosts, 0.0)[runs.host]  # -1: the last
        order = np.lexsort([corrected, cell])
        ordered = Runs(corrected[order], runs.own_sigma[order], cell[order], runs.host[order])
        of_runs = _of_runs(ordered, len(hosts), count, random)
        rates[ran], noise, effects, disturbed[order] = of_runs
    _fill_predicted(rates, ran, cells, random)
    return Posterior(rates, noise, effects + hosts[:, None], disturbed)


def _of_runs(
    runs: Runs, hosts: int, count: int, random: np.random.Generator
) -> tuple[Floats, Floats, Floats, Floats]:
    """Draws of the cells that ran, of s and of the hosts; P(disturbed) of each run.

    The cells of `runs` are numbered without gaps, and its runs sorted by cell, then by rate.
    """
    half, on_host = count // 2, runs.host[:, None] == np.arange(hosts)
    single = np.bincount(runs.cell)[runs.cell] == 1
    own = np.where(np.isnan(runs.own_sigma), np.where(single, UNSTATED, 0.0), runs.own_sigma)
    runs = Runs(runs.log_rate, own, runs.cell, runs.host)
    sets = _sets(np.bincount(runs.cell))
    coarse = np.geomspace(2e-4, 0.4, 32)
    given = _given(coarse, runs, sets, on_host)
    likely, sets = coarse[given.p > 1e-6], sets.those(given.p @ given.chance > _LEAST_CHANCE)
    nodes = np.geomspace(likely[0] / 1.3, likely[-1] * 1.3, 40)
    given = _given(nodes, runs, sets, on_host)
    picked = np.searchsorted(np.cumsum(given.p), (np.arange(half) + 0.5) / half)
    picked = np.tile(np.minimum(picked, len(nodes) - 1), 2)
    chosen = _chosen(given.chance, sets, picked, random)
    rates = _mirrored(len(chosen), half, random) / np.sqrt(given.total[picked, chosen])
    rates += given.mean[picked, chosen]
    effects = _mirrored(hosts, half, random)
    for node in np.unique(picked) if hosts else ():
        draws = np.flatnonzero(picked == node)
        drawn = np.linalg.solve(given.root[node].T, effects[:, draws])
        effects[:, draws] = given.effect[node][:, None] + drawn
        rates[:, draws] -= np.einsum("cdh,hd->cd", given.share[node][chosen[:, draws]], drawn)
    sound = sets.members(given.p @ given.chance, len(runs.cell))
    return rates, nodes[picked], effects, 1 - sound


@dataclass(frozen=True, slots=True)
class _Sets:
    """The sets of runs that may be the sound ones of their cells, each array (sets,).

    Set i holds the runs start[i] to end[i]: those between two sound runs are sound too.
    """

    start: Integers
    end: Integers
    cell: Integers
    disturbed: Integers  # how many runs of the cell are not in the set

    def those(self, which: Flags) -> "_Sets":
        """Some of the sets."""
        return _Sets(self.start[which], self.end[which], self.cell[which], self.disturbed[which])

    def first(self) -> Integers:
        """The first set of each cell."""
        return np.flatnonzero(np.diff(self.cell, prepend=-1))

    def sums(self, values: Floats) -> Floats:
        """Sums of values of runs, (nodes, runs), over each set, (nodes, sets)."""
        cuts, at = np.unique([self.start, self.end], return_inverse=True)
        start, end = at.reshape(2, -1)
        summed = np.zeros((len(values), len(cuts)))
        np.cumsum(np.add.reduceat(values, cuts[:-1], axis=1), axis=1, out=summed[:, 1:])
        return np.asarray(summed[:, end] - summed[:, start])

    def members(self, chances: Floats, runs: int) -> Floats:
        """The sum of the chances of the sets that hold each run, (runs,)."""
        ends = np.bincount(self.start, chances, runs + 1) - np.bincount(self.end, chances, runs + 1)
        return np.asarray(np.cumsum(ends)[:-1])


def _sets(counts: Integers) -> _Sets:
    """The sets of cells with so many runs each, those of a cell mirrored about the whole."""
    offset = np.cumsum(counts) - counts
    parts = []
    for count in np.unique(counts):
        ends = np.arange(min(count - 1, _MOST_DISTURBED) + 1)
        below, above = np.nonzero(np.add.outer(ends, ends) < len(ends))  # disturbed runs
        mirrored = np.argsort(below - above, kind="stable")
        below, above = below[mirrored], above[mirrored]
        cells = np.flatnonzero(counts == count)
        start = offset[cells, None]
        of_count = start + below, start + count - above, cells[:, None], below + above
        parts.append(np.stack([one.ravel() for one in np.broadcast_arrays(*of_count)]))
    joined = np.concatenate(parts, axis=1)
    return _Sets(*joined[:, np.argsort(joined[2], kind="stable")])


def _chosen(chance: Floats, sets: _Sets, picked: Integers, random: np.random.Generator) -> Integers:
    """A set of each cell for each draw, with the chances at its s, (cells, draws)."""
    first = sets.first()
    chosen = np.repeat(first[:, None], len(picked), axis=1)
    several = np.flatnonzero(np.diff(first, append=len(sets.cell)) > 1)
    if len(several):
        # the chances of a cell add up to 1, so each cell has a unit of one rising line
        line = (np.cumsum(chance, axis=1) + len(first) * np.arange(len(chance))[:, None]).ravel()
        drawn = random.random((len(several), len(picked) // 2))
        at = np.concatenate([drawn, 1 - drawn], axis=1) + several[:, None] + len(first) * picked
        found = np.searchsorted(line, at) - len(sets.cell) * picked
        chosen[several] = np.clip(
            found, first[several, None], np.append(first, len(sets.cell))[several + 1, None] - 1
        )
    return chosen


@dataclass(frozen=True, slots=True)
class _Given:
    """The posterior given each of several s: a mixture over sets, each of which is Gaussian.

    p: weight of s, (nodes,).   chance: of a set in its cell.   mean, total: of the cell without
    errors of hosts, and its precision, (nodes, sets).   share: of a host in a set, (nodes, sets,
    hosts).   effect, root: mean of the hosts, (nodes, hosts), and the Cholesky factor of their
    precision.
    """

    p: Floats
    chance: Floats
    mean: Floats
    total: Floats
    share: Floats
    effect: Floats
    root: Floats


def _given(nodes: Floats, runs: Runs, sets: _Sets, on_host: Flags) -> _Given:
    """The posterior at each s; the hosts' by Newton's method, which sums over the sets."""
    weight, first, hosts = 1 / (nodes[:, None] ** 2 + runs.own_sigma**2), sets.first(), on_host.T
    counts = np.bincount(runs.cell)
    centre = np.bincount(runs.cell, runs.log_rate) / counts  # sums of small numbers are exact
    total, logs = sets.sums(weight), sets.sums(np.log(weight / (2 * np.pi)))
    of_hosts = [sets.sums(weight * on) for on in hosts]
    share = np.moveaxis(np.reshape(of_hosts, (len(hosts), *total.shape)) / total, 0, -1)
    unusual = np.log(nodes / USUAL_NOISE) / NOISE_SPREAD
    loud = (NOISE_FREEDOM + 1) * np.log1p(unusual**2 / NOISE_FREEDOM)
    prior = -np.where(unusual > 0, loud, unusual**2) / 2
    effect = np.zeros((len(nodes), len(hosts)))
    for _ in range(_HOST_STEPS if len(hosts) else 1):
        rate = runs.log_rate - centre[runs.cell] - effect @ hosts
        weighted = weight * rate
        mean = sets.sums(weighted) / total
        log_p = logs - np.log(total / (2 * np.pi)) - sets.sums(weighted * rate) + total * mean**2
        log_p = log_p / 2 + sets.disturbed * np.log(DISTURBED / (2 * np.log(LARGEST)))
        highest = np.maximum.reduceat(log_p, first, axis=1)
        chance = np.exp(log_p - highest[:, sets.cell])
        of_cell = np.add.reduceat(chance, first, axis=1)
        chance /= of_cell[:, sets.cell]
        log_s = prior + (highest + np.log(of_cell)).sum(axis=1)
        right = np.zeros_like(effect)
        precision = -np.einsum("nsg,nsh,ns->ngh", share, share, total * chance)
        for number, (on, of_host) in enumerate(zip(hosts, of_hosts, strict=True)):
            precision[:, number, number] += HOST_SPREAD**-2 + (chance * of_host).sum(axis=1)
            right[:, number] = (chance * (sets.sums(weighted * on) - of_host * mean)).sum(axis=1)
        right -= effect / HOST_SPREAD**2
        root = np.linalg.cholesky(precision)
        step = np.linalg.solve(precision, right[:, :, None])[:, :, 0]
        log_s += ((step * right).sum(axis=1) - (effect**2).sum(axis=1) / HOST_SPREAD**2) / 2
        log_s -= np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
        mean += centre[sets.cell] - np.einsum("nsh,nh->ns", share, step)
        effect = effect + step
    p = np.exp(log_s - log_s.max())
    return _Given(p / p.sum(), chance, mean, total, share, effect, root)


def _mirrored(rows: int, half: int, random: np.random.Generator) -> Floats:
    """Standard normal draws, then the same with the other sign, (rows, 2 * half)."""
    drawn = random.standard_normal((rows, half))
    return np.concatenate([drawn, -drawn], axis=1)


def _fill_predicted(
    rates: Floats, ran: Integers, cells: Cells, random: np.random.Generator
) -> None:
    """Draw the predicted cells that did not run, given the drawn rates of those that did.

    The unknowns are standard normal: the common error, one of each size, one of each layout. A draw
    solves their normal equations with noise of the same covariance added to the right-hand side.
    """
    is_predicted = np.isfinite(cells.predicted)
    missing = is_predicted.copy()
    missing[ran] = False
    if not missing.any():
        return
    from scipy.sparse import csr_array, eye_array  # takes a quarter of a second
    from scipy.sparse.linalg import splu

    half, known = rates.shape[1] // 2, ran[is_predicted[ran]]
    sizes = 1 + int(cells.size.max()) + 1
    unknowns = sizes + int(cells.layout.max()) + 1
    column = np.stack([np.zeros_like(cells.size), sizes + cells.layout, 1 + cells.size], axis=1)
    starts = np.arange(0, column.size + 1, 3)
    parts = csr_array(
        (cells.errors[:, :3].ravel(), column.ravel(), starts), shape=(len(column), unknowns)
    )
    rest = np.maximum(cells.errors[known, 3, None], _LEAST_REST)
    gap = (rates[known] - cells.predicted[known, None]) / rest
    seen = csr_array(parts[known].multiply(1 / rest))
    right = seen.T @ (gap + _mirrored(len(known), half, random))
    right += _mirrored(unknowns, half, random)
    unknown = splu((eye_array(unknowns) + seen.T @ seen).tocsc()).solve(right)
    rates[missing] = (
        cells.predicted[missing, None]
        + parts[missing] @ unknown
        + cells.errors[missing, 3, None] * _mirrored(int(missing.sum()), half, random)
    )


def shares_of_best(rates: Floats, size: Integers, candidate: Flags) -> Floats:
    """Draws of each rate over that of its size's best candidate, (cells, draws); else NaN."""
    shares = np.full_like(rates, np.nan)
    for number in np.unique(size[candidate]):
        here = size == number
        shares[here] = np.exp(rates[here] - rates[here & candidate].max(axis=0))
    return shares


def best_of(rates: Floats) -> Floats:
    """The probability that each cell of one size, (cells, draws), is its best."""
    return np.asarray(np.bincount(rates.argmax(axis=0), minlength=len(rates)) / rates.shape[1])


def return_of(smaller: Floats, larger: Floats, growth: float) -> Floats:
    """Draws of what a step to `growth` times the GPUs returned: 1 where rates grow as sizes do."""
    return np.asarray((np.exp(larger - smaller) - 1) / (growth - 1))
