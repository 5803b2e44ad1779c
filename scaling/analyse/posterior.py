"""Draws of the rates of one comparison group: every interval of a report is a quantile of them.

Run j of cell i (a layout at a size, in one software stack) on hosts H:

    y_j = ln tokens/s = mu_i + h(slowest named host of H) + noise,   noise ~ N(0, s^2 + own_j^2)

own_j is known: the standard error of the run's own step time. s, the standard deviation between
runs of one cell, is unknown and shared by the group. The prior of ln s has the median
ln USUAL_NOISE. Below it is normal: a few equal runs are not without noise. Above it is Student's t:
a few noisy runs outweigh it. mu is flat. h ~ N(e, HOST_SPREAD^2) for each host that probes or other
runs name as slow by e.

A cell that did not run has a prediction p_i with four independent errors, of known sizes:

    mu_i = p_i + common + layout(l) + size(n) + rest(i)

The errors of predictions of the cells that ran tell the first three. Predictions
never change the rate of a cell that ran.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from scaling.arrays import Flags, Floats

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Integers = npt.NDArray[np.integer[Any]]

USUAL_NOISE = 0.012  # published repeats of one layout differ by 0.1 to 1.4 %
NOISE_SPREAD = 0.5  # of ln s: a factor of two either way
NOISE_FREEDOM = 6  # of Student's t
HOST_SPREAD = 0.10  # what a named host may differ by
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

    @classmethod
    def without_predictions(cls, count: int) -> "Cells":
        """Cells that all ran, so that it does not matter which is which."""
        numbers = np.arange(count)
        return cls(numbers, numbers, np.full(count, np.nan), np.zeros((count, len(PARTS))))


@dataclass(frozen=True, slots=True)
class Posterior:
    """Draws of a group.

    rates: ln tokens/s, (cells, draws); NaN for a cell with neither a run nor a prediction.
    noise: s, (draws,).   hosts: what each named host adds to ln tokens/s, (hosts, draws).
    """

    rates: Floats
    noise: Floats
    hosts: Floats


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
    ran, index = np.unique(runs.cell, return_inverse=True)
    rates: Floats = np.full((len(cells.layout), count), np.nan)
    noise: Floats = np.full(count, np.nan)
    effects: Floats = np.zeros((len(hosts), count))
    if len(ran):
        corrected = runs.log_rate - np.append(hosts, 0.0)[runs.host]  # -1: the last
        runs = Runs(corrected, runs.own_sigma, runs.cell, runs.host)
        rates[ran], noise, effects = _of_runs(runs, index, len(hosts), count, random)
    _fill_predicted(rates, ran, cells, random)
    return Posterior(rates, noise, effects + hosts[:, None])


def _of_runs(
    runs: Runs, index: Integers, hosts: int, count: int, random: np.random.Generator
) -> tuple[Floats, Floats, Floats]:
    """Draws of the cells that ran, of s and of the hosts; `index`: the cell of a run."""
    sums, half = _sums(index, int(index.max()) + 1), count // 2
    unstated = np.where(np.bincount(index)[index] == 1, UNSTATED, 0.0)
    own = np.where(np.isnan(runs.own_sigma), unstated, runs.own_sigma)
    runs = Runs(runs.log_rate, own, runs.cell, runs.host)
    on_host = runs.host[:, None] == np.arange(hosts)
    coarse = np.geomspace(2e-4, 0.4, 32)
    likely = coarse[_given(coarse, runs, index, sums, on_host).p > 1e-6]
    nodes = np.geomspace(likely[0] / 1.3, likely[-1] * 1.3, 40)
    given = _given(nodes, runs, index, sums, on_host)
    picked = np.searchsorted(np.cumsum(given.p), (np.arange(half) + 0.5) / half)
    picked = np.minimum(picked, len(nodes) - 1)
    error = random.standard_normal((sums.shape[1], half))
    error /= np.sqrt(given.total).T[:, picked]
    mean = given.mean.T[:, picked]
    rates = np.concatenate([mean + error, mean - error], axis=1)
    effects = np.zeros((hosts, count))
    for node in np.unique(picked) if hosts else ():
        draws = np.flatnonzero(picked == node)
        drawn = np.linalg.solve(given.root[node].T, random.standard_normal((hosts, len(draws))))
        for columns, sign in ((draws, 1), (draws + half, -1)):
            effects[:, columns] = given.effect[node][:, None] + sign * drawn
            rates[:, columns] -= given.share[node] @ effects[:, columns]
    return rates, np.tile(nodes[picked], 2), effects


@dataclass(frozen=True, slots=True)
class _Given:
    """The Gaussian posterior given each of several s, with the cells eliminated.

    p: weight of s, (nodes,).   mean, total: of a cell without hosts, and its precision, (nodes,
    cells).   share: of a host in a cell, (nodes, cells, hosts).   effect, root: mean of the hosts,
    (nodes, hosts), and the Cholesky factor of their precision.
    """

    p: Floats
    mean: Floats
    total: Floats
    share: Floats
    effect: Floats
    root: Floats


def _given(nodes: Floats, runs: Runs, index: Integers, sums: "csr_array", on_host: Flags) -> _Given:
    weight = 1 / (nodes[:, None] ** 2 + runs.own_sigma**2)
    total = weight @ sums
    mean = (weight * runs.log_rate) @ sums / total
    residual = runs.log_rate - mean[:, index]
    log_p = np.log(weight).sum(axis=1) - np.log(total).sum(axis=1)
    log_p -= (weight * residual**2).sum(axis=1)
    unusual = np.log(nodes / USUAL_NOISE) / NOISE_SPREAD
    loud = (NOISE_FREEDOM + 1) * np.log1p(unusual**2 / NOISE_FREEDOM)
    log_p -= np.where(unusual > 0, loud, unusual**2)
    of_hosts = [weight * on for on in on_host.T]
    share = np.zeros((*total.shape, len(of_hosts)))
    precision = np.zeros((len(nodes), len(of_hosts), len(of_hosts)))
    right = np.zeros((len(nodes), len(of_hosts)))
    for number, weighted in enumerate(of_hosts):
        share[:, :, number] = weighted @ sums / total
        precision[:, number, number] = HOST_SPREAD**-2 + weighted.sum(axis=1)
        right[:, number] = (weighted * residual).sum(axis=1)
    precision -= np.einsum("ncg,nch,nc->ngh", share, share, total)
    root = np.linalg.cholesky(precision)
    effect = np.linalg.solve(precision, right[:, :, None])[:, :, 0]
    log_p += (effect * right).sum(axis=1)
    log_p -= 2 * np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
    p = np.exp((log_p - log_p.max()) / 2)
    return _Given(p / p.sum(), mean, total, share, effect, root)


def _sums(index: Integers, count: int) -> "csr_array":
    """A matrix that sums what has the same index: (n, count)."""
    from scipy.sparse import csr_array  # takes a quarter of a second, needed only with rows

    ones = np.ones(len(index))
    return csr_array((ones, index, np.arange(len(index) + 1)), shape=(len(index), count))


def _fill_predicted(
    rates: Floats, ran: Integers, cells: Cells, random: np.random.Generator
) -> None:
    """Draw the predicted cells that did not run, given the drawn rates of those that did.

    The unknowns are standard normal: the common error, one of each size, one of each layout. The
    layouts are eliminated, so the matrix to solve has one row for each size.
    """
    is_predicted = np.isfinite(cells.predicted)
    missing = is_predicted.copy()
    missing[ran] = False
    if not missing.any():
        return
    half = rates.shape[1] // 2

    def mirrored(rows: int) -> Floats:
        drawn = random.standard_normal((rows, half))
        return np.concatenate([drawn, -drawn], axis=1)

    layouts, sizes = int(cells.layout.max()) + 1, int(cells.size.max()) + 1
    core = np.zeros((len(cells.size), 1 + sizes))  # of the common error and of the sizes
    core[:, 0] = cells.errors[:, 0]
    core[np.arange(len(core)), 1 + cells.size] = cells.errors[:, 2]
    known = ran[is_predicted[ran]]
    rest = np.maximum(cells.errors[known, 3], _LEAST_REST)[:, None]
    gap = (rates[known] - cells.predicted[known, None]) / rest
    seen = core[known] / rest
    own = (
        _sums(cells.layout[known], layouts).multiply(cells.errors[known, 1, None] / rest).T.tocsr()
    )
    own_precision = 1 + own.multiply(own).sum(axis=1)[:, None]
    crossed = own @ seen / own_precision
    precision = np.eye(1 + sizes) + seen.T @ seen - crossed.T @ (crossed * own_precision)
    gap_of_layouts = own @ gap
    unknown = np.linalg.solve(precision, seen.T @ gap - crossed.T @ gap_of_layouts)
    unknown += np.linalg.solve(np.linalg.cholesky(precision).T, mirrored(1 + sizes))
    of_layout = gap_of_layouts / own_precision - crossed @ unknown
    of_layout += mirrored(layouts) / np.sqrt(own_precision)
    errors = cells.errors[missing, :, None]
    rates[missing] = (
        cells.predicted[missing, None]
        + core[missing] @ unknown
        + errors[:, 1] * of_layout[cells.layout[missing]]
        + errors[:, 3] * mirrored(int(missing.sum()))
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
