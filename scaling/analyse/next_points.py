"""Which points to measure next: those that are expected to gain most per GPU-second."""

from dataclasses import dataclass

import numpy as np

from scaling.analyse.posterior import CLOSE, NO_HOSTS, Cells, Integers, Runs, best_of, posterior
from scaling.arrays import Flags, Floats

GAIN = 0.01  # a size is settled once all that is left of it is expected to gain less
_OF_ROUND = 0.5  # share of the expected gain that one round is to bring; the next one knows more
_EVEN = 0.5  # probability from which a cell counts as one that fits
_DRAWS = 400  # as many as the largest group has
_SEED = 7


@dataclass(frozen=True, slots=True)
class Contest:
    """The cells of a study, each a layout at a size, (cells,).

    group: comparison group.   layout: equal for one layout of a group.   world_size: GPUs.
    predicted: ln tokens/s, NaN without a prediction.   errors: its standard deviations, (cells, 4).
    fits: predicted probability that it runs.
    """

    group: Integers
    layout: Integers
    world_size: Integers
    predicted: Floats
    errors: Floats
    fits: Floats

    @property
    def size(self) -> Integers:
        """Equal for the cells that compete: one group, one size."""
        pairs = np.stack([self.group, self.world_size])
        return np.asarray(np.unique(pairs, axis=1, return_inverse=True)[1]).ravel()


@dataclass(frozen=True, slots=True)
class Estimates:
    """The knowledge of each cell.

    rates: draws of ln tokens/s, (cells, draws), NaN where nothing is known.   fits: probability
    that it runs.   size: equal for cells that compete.   tried, ran: a run ended, and with a rate.
    """

    rates: Floats
    fits: Floats
    size: Integers
    tried: Flags
    ran: Flags


@dataclass(frozen=True, slots=True)
class Plan:
    """The cells that may be measured, and their cost, (cells,).

    gpu_s: GPU-seconds of what is still to run of a cell, if it is chosen.   left: further choices
    of the cell that are possible.   keep: only cells predicted slower than the best of their size
    by at most this ratio.   spread: share of the cells that the first round takes
    whatever they promise, of the cheaper half, since a calibration that saw only winners knows
    nothing else.
    """

    gpu_s: Floats
    left: Integers
    keep: float = np.inf
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class Next:
    """The cells to run next, the most valuable per GPU-second first, and why not the others.

    gain: what a cell that was not tried may gain on the best of its size, a ratio, (cells,).
    p_best: of the cells that ran, NaN for others, (cells,).   dear: beyond the budget.
    """

    cells: list[int]
    gain: Floats
    p_best: Floats
    dear: list[int]


def estimate(contest: Contest, runs: Runs, tried: Flags, hosts: Floats = NO_HOSTS) -> Estimates:
    """Draws of every cell by its runs, or by its prediction and the runs of other cells.

    `hosts`: what each named host seems to add to ln tokens/s.
    """
    rates = np.full((len(tried), _DRAWS), np.nan)
    for group in np.unique(contest.group):
        at = np.flatnonzero(contest.group == group)
        of_group = np.flatnonzero(contest.group[runs.cell] == group)
        layout, size = (
            np.unique(values[at], return_inverse=True)[1]
            for values in (contest.layout, contest.world_size)
        )
        cells = Cells(layout, size, contest.predicted[at], contest.errors[at])
        own = Runs(
            runs.log_rate[of_group], runs.own_sigma[of_group],
            np.searchsorted(at, runs.cell[of_group]), runs.host[of_group],
        )  # fmt: skip
        rates[at] = posterior(own, cells, hosts, draws=_DRAWS).rates
    ran = np.isin(np.arange(len(tried)), runs.cell)
    fits = np.where(ran, 1.0, np.where(tried, 0.0, contest.fits))
    return Estimates(rates, fits, contest.size, tried | ran, ran)


def next_points(estimates: Estimates, plan: Plan, budget_gpu_s: float = np.inf) -> Next:
    """The cells that one round measures; none where nothing more is worth it.

    The expected gain of a cell is its lead over the best so far, 0 if it is slower, in the mean of
    the draws. It is a share of the best of the size. The cell with the most gain per GPU-second is
    taken. That repeats until half of what is left to gain is expected to be gained. A size is
    settled once all that is left is expected to gain less than `GAIN`. There, several cells may
    have a P(best) of at least `CLOSE`. Those with runs left run once more whose rates, if they were
    known, would tell most.
    """
    random = np.random.default_rng(_SEED)
    gain, p_best = np.zeros(len(plan.left)), np.full(len(plan.left), np.nan)
    may = ~estimates.tried & (plan.left > 0)
    unknown = np.isnan(estimates.rates[:, 0])
    valued = [(np.inf, cell) for cell in np.flatnonzero(may & unknown).tolist()]
    behind = np.zeros(len(plan.left))  # ln of the mean rate, less that of the best that fits
    fit = estimates.fits >= _EVEN
    for size in np.unique(estimates.size):
        at = np.flatnonzero((estimates.size == size) & ~unknown)
        shares = _shares(estimates.rates[at], estimates.fits[at], random)
        rates = estimates.rates[at].mean(axis=1)
        behind[at] = rates.max(initial=-np.inf, where=fit[at]) - rates
        ran = estimates.ran[at]
        best = shares[ran].max(axis=0, initial=0.0)
        gain[at] = np.maximum(shares - best, 0.0).mean(axis=1)
        allowed = may[at] & (behind[at] <= np.log1p(plan.keep))
        taken = _greedy(shares, best, allowed, plan.gpu_s[at])
        valued += [(value, int(at[cell])) for value, cell in taken]
        if ran.any():
            p_best[at[ran]] = best_of(estimates.rates[at[ran]])
            close = at[ran][p_best[at[ran]] >= CLOSE]
            if not taken and len(close) > 1:
                told = np.where(plan.left[close] > 0, _told(estimates.rates[close]), 0.0)
                much = (told > 0) & (told >= _OF_ROUND * told.max())
                again = close[much]
                valued += zip(told[much] / plan.gpu_s[again], again.tolist(), strict=True)
    if not estimates.tried.any():
        others = np.flatnonzero(may & fit & ~unknown)
        count = int(np.ceil(plan.spread * len(others)))
        cheap = others[np.argsort(plan.gpu_s[others], kind="stable")][: -(-len(others) // 2)]
        valued += [(0.0, cell) for cell in _evenly(cheap[np.argsort(behind[cheap])], count)]
    cells: dict[int, None] = {}
    dear = []
    for _, cell in sorted(valued, key=lambda one: -one[0]):
        if cell not in cells and (cost := float(plan.gpu_s[cell])) <= budget_gpu_s:
            cells[cell] = None
            budget_gpu_s -= cost
        elif cell not in cells:
            dear.append(cell)
    return Next(list(cells), gain, p_best, dear)


def _shares(rates: Floats, fits: Floats, random: np.random.Generator) -> Floats:
    """Each rate as a share of the best of its draw; 0 in draws in which the cell does not fit."""
    runs = random.random(rates.shape) < fits[:, None]
    best = np.where(runs, rates, -np.inf).max(axis=0, initial=-np.inf)
    with np.errstate(over="ignore"):
        return np.where(runs, np.exp(rates - np.where(np.isfinite(best), best, np.inf)), 0.0)


def _told(rates: Floats) -> Floats:
    """The gain of choosing among several cells if the rate of one were known, for each, (cells,).

    A ratio. A cell with few runs, or with runs that disagree, tells more than one that is known.
    """
    drawn = np.exp(rates - rates.max())
    mean = drawn.mean(axis=1)
    rival = np.array([np.delete(mean, cell).max() for cell in range(len(mean))])
    known = np.maximum(drawn, rival[:, None]).mean(axis=1)
    return np.asarray((known - np.maximum(mean, rival)) / mean.max())


def _greedy(shares: Floats, best: Floats, allowed: Flags, gpu_s: Floats) -> list[tuple[float, int]]:
    """(gain per GPU-second, cell) until what is left to gain is halved, or below `GAIN`."""
    allowed, taken = allowed.copy(), []
    reachable = np.maximum(shares[allowed].max(axis=0, initial=0.0), best)
    goal = max(GAIN, _OF_ROUND * float((reachable - best).mean()))
    while allowed.any() and float((reachable - best).mean()) > goal:
        cells = np.flatnonzero(allowed)
        values = np.maximum(shares[cells] - best, 0.0).mean(axis=1) / gpu_s[cells]
        place = int(values.argmax())
        cell = int(cells[place])
        taken.append((float(values[place]), cell))
        allowed[cell] = False
        best = np.maximum(best, shares[cell])
    return taken


def _evenly(cells: Integers, count: int) -> list[int]:
    """So many of the cells, at most all: the middles of equal parts."""
    count = min(count, len(cells))
    return [int(cells[int((part + 0.5) * len(cells) / count)]) for part in range(count)]
