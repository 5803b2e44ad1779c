"""The points to measure next: by hand on made-up draws, and replayed on published sweeps."""

import dataclasses
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.replayed_sweep import play
from scaling.analyse.next_points import GAIN, Contest, Plan, estimate, next_points
from scaling.analyse.posterior import Runs
from scaling.importing.reader import read_rows
from tests.conftest import published_csv

NONE = Runs(np.empty(0), np.empty(0), np.empty(0, dtype=int), np.empty(0, dtype=int))


def contest(*seconds, sigma=0.05, sizes=None, fits=1.0):
    """Layouts of one group, predicted to take these seconds a step, with errors of their own."""
    count = len(seconds)
    errors = np.zeros((count, 4))
    errors[:, 3] = sigma
    return Contest(
        group=np.zeros(count, dtype=int),
        layout=np.arange(count),
        world_size=np.full(count, 8) if sizes is None else np.array(sizes),
        predicted=-np.log(np.array(seconds, dtype=float)),
        errors=errors,
        fits=np.broadcast_to(np.asarray(fits, dtype=float), count),
    )


def plan(count, left=1, gpu_s=1.0, **more):
    return Plan(
        np.broadcast_to(np.asarray(gpu_s, dtype=float), count),
        np.broadcast_to(np.asarray(left), count),
        **more,
    )


def measured(*runs, host=-1):
    """Runs as (cell, seconds)."""
    cell, seconds = np.array(runs, dtype=float).T
    hosts = np.broadcast_to(np.asarray(host), len(cell))
    return Runs(-np.log(seconds), np.full(len(cell), 0.001), cell.astype(int), hosts)


def chosen(cells, runs=NONE, plan_=None, budget_gpu_s=np.inf, hosts=()):
    count = len(cells.layout)
    tried = np.isin(np.arange(count), runs.cell)
    known = estimate(cells, runs, tried, np.array(hosts, dtype=float))
    return next_points(known, plan_ or plan(count), budget_gpu_s)


def test_before_any_run_the_predicted_best_of_each_size_comes_first():
    cells = contest(1.0, 2.0, 3.0, 0.5, sizes=[8, 8, 16, 16])
    assert sorted(chosen(cells).cells) == [0, 3]


def test_a_sure_best_that_ran_leaves_nothing_to_gain():
    cells = contest(1.0, 1.5, 2.0)
    found = chosen(cells, measured((0, 1.0)))
    assert found.cells == []
    assert found.gain.max() < GAIN


def test_a_best_slower_than_predicted_sends_for_the_next():
    cells = contest(1.0, 1.5, 2.0)
    assert chosen(cells, measured((0, 1.6))).cells == [1]


def test_a_common_error_learned_from_one_run_moves_the_others_too():
    cells = contest(1.0, 1.02, 1.5, sigma=0.005)
    errors = cells.errors.copy()
    errors[:, 0] = 0.5
    cells = dataclasses.replace(cells, errors=errors)
    # all are slow, as it is: its rivals are no nearer than before
    assert chosen(cells, measured((0, 2.0))).cells == []


def test_wide_errors_take_several_points_in_a_round_but_not_all_that_may_gain():
    cells = contest(*np.linspace(1.0, 1.2, 20), sigma=0.2)
    second = chosen(cells, measured((0, 1.0))).cells
    assert 1 < len(second) < 10


def test_gain_counts_per_gpu_second():
    cells = contest(1.0, 1.0, sigma=0.1)
    assert chosen(cells, plan_=plan(2, gpu_s=[9.0, 1.0])).cells[0] == 1


def test_a_layout_that_hardly_fits_is_taken_after_one_that_does():
    cells = contest(1.0, 1.05, fits=[0.1, 1.0], sigma=0.01)
    assert chosen(cells).cells[0] == 1


def test_a_layout_without_a_prediction_is_always_tried():
    cells = contest(1.0, np.nan, sigma=0.01)
    assert set(chosen(cells).cells) == {0, 1}
    assert chosen(cells, measured((0, 1.0), (1, 5.0))).cells == []


def test_a_size_at_which_nothing_ran_is_tried_again():
    cells = contest(1.0, 2.0, 3.0, sigma=0.01)
    failed = np.array([True, False, False])
    assert next_points(estimate(cells, NONE, failed), plan(3)).cells == [1]


def test_contenders_of_a_settled_size_run_once_more_while_runs_are_left():
    cells = contest(1.0, 1.0, 1.5, sigma=0.01)
    ran = measured((0, 1.0), (1, 1.003), (2, 1.5))
    found = chosen(cells, ran)
    assert sorted(found.cells) == [0, 1]
    assert found.p_best[2] < 0.01 < found.p_best[1]
    assert chosen(cells, ran, plan(3, left=[0, 1, 1])).cells == [1]
    assert chosen(cells, ran, plan(3, left=0)).cells == []
    decided = measured((0, 1.0), (1, 1.2), (2, 1.5))
    assert chosen(cells, decided).cells == []


def test_only_the_layout_whose_repeats_disagree_runs_again():
    """Its fast run would make it the best; one of its two runs was disturbed."""
    cells = contest(1.5, 1.05, 1.05, 1.0, sigma=0.01)
    disagree = measured((0, 1.5), (1, 1.05), (1, 1.052), (2, 1.05), (2, 1.051), (3, 1.0), (3, 2.0))
    found = chosen(cells, disagree)
    assert found.cells == [3]
    assert found.p_best[3] == pytest.approx(0.5, abs=0.02)
    again = dataclasses.replace(
        disagree, log_rate=np.append(disagree.log_rate, -np.log(1.004)),
        own_sigma=np.append(disagree.own_sigma, 0.001), cell=np.append(disagree.cell, 3),
        host=np.append(disagree.host, -1),
    )  # fmt: skip
    assert chosen(cells, again).cells == []
    assert chosen(cells, again).p_best[3] > 0.95


def test_a_contender_is_not_repeated_before_its_size_is_settled():
    cells = contest(1.0, 1.0, 0.9, sigma=0.1)
    assert chosen(cells, measured((0, 1.0), (1, 1.003))).cells == [2]


def test_a_layout_that_only_ran_on_a_slow_host_is_undecided():
    cells = contest(1.0, 1.0, sigma=0.01)
    ran = measured((0, 1.0), (1, 1.06))
    assert chosen(cells, ran).cells == []
    on_slow_host = dataclasses.replace(ran, host=np.array([-1, 0]))
    assert 1 in chosen(cells, on_slow_host, plan(2, left=[0, 1]), hosts=[-0.06]).cells


def test_keep_leaves_out_all_that_is_predicted_slower():
    cells = contest(1.0, 1.1, 1.3, sigma=0.5)
    assert set(chosen(cells, plan_=plan(3, keep=0.15)).cells) <= {0, 1}
    assert chosen(cells, plan_=plan(3, keep=0.0)).cells == [0]


def test_the_spread_of_the_first_round_reaches_from_fast_to_slow_among_the_cheap():
    cells = contest(*np.geomspace(1, 50, 100), sigma=0.01)
    cost = np.where(np.arange(100) % 2, 1.0, 9.0)
    first = chosen(cells, plan_=plan(100, spread=0.1, gpu_s=cost)).cells
    others = sorted(set(first) - {0, 1})
    assert len(others) == 10
    assert all(cell % 2 for cell in others)
    assert others[0] < 15
    assert others[-1] > 85
    assert chosen(cells, measured((0, 1.0)), plan(100, spread=0.1)).cells == []


@settings(max_examples=30, deadline=None)
@given(
    seconds=st.lists(st.floats(0.1, 100), min_size=1, max_size=12),
    budget=st.floats(0.5, 1e3),
    sigma=st.floats(0.01, 1.0),
)
def test_what_is_chosen_never_costs_more_than_the_budget(seconds, budget, sigma):
    cells, cost = contest(*seconds, sigma=sigma), np.array(seconds)
    bound = chosen(cells, plan_=plan(len(seconds), gpu_s=cost, spread=0.5), budget_gpu_s=budget)
    assert cost[bound.cells].sum() <= budget * (1 + 1e-9)
    assert len(set(bound.cells)) == len(bound.cells)
    free = chosen(cells, plan_=plan(len(seconds), gpu_s=cost, spread=0.5))
    assert set(bound.cells) | set(bound.dear) == set(free.cells)


@pytest.mark.slow
def test_on_published_rows_a_sixth_of_the_points_finds_the_best_layouts():
    names = ("llama_layouts_a100", "gpt_layouts_a100", "llama_layouts_h100")
    tables = [play(read_rows(published_csv(name)))[-1] for name in names]
    points, measured_points = (
        sum(getattr(one, name) for one in tables) for name in ("points", "measured")
    )
    assert measured_points <= points / 6
    assert sum(one.gpu_hours_spent for one in tables) <= sum(one.gpu_hours for one in tables) / 6
    regrets = [regret for one in tables for regret in one.regrets]
    assert None not in regrets
    assert statistics.fmean(regrets) <= 0.008
