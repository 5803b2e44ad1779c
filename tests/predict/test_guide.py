"""Which points a guided sweep measures: by hand on predictions made up, and on published rows."""

import dataclasses
import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.replayed_sweep import play
from scaling.importing.reader import read_rows
from scaling.predict.advise.guide import Guide, choose
from scaling.predict.advise.surprise import Progress, choose_again, most_again
from scaling.predict.cost.model import Prediction, predict
from scaling.predict.cost.ratios import expected_gain
from scaling.predict.read.features import Points
from scaling.predict.read.points import points_of
from tests.conftest import published_csv
from tests.predict.conftest import as_table, table_of

pytestmark = pytest.mark.slow

GUIDE = Guide(keep=0.15, spread=0.0, budget_gpu_s=None, steps=10, startup_s=0.0)


def sweep(*times, world_size=8, memory=0.5, also=()) -> tuple[Points, Prediction]:
    """Points of one setting and size with these predicted seconds; `also`: (world_size, seconds).

    `memory` is predicted need over capacity, one for all or one each.
    """
    sizes = [world_size] * len(times) + [size for size, _ in also]
    seconds = np.array([*times, *(one for _, one in also)], dtype=float)
    rows = [{"tp": 1, "dp": size, "global_batch_size": 512} for size in sizes]
    points = points_of(as_table(table_of(*rows), "test"))
    blank = predict(points)
    capacity = np.ones(len(sizes))
    need = np.broadcast_to(np.asarray(memory, dtype=float), len(sizes)).copy()
    made = dataclasses.replace(
        blank,
        step_time_s=seconds,
        risk_adjusted_s=seconds,
        need_bytes=need,
        capacity_bytes=capacity,
    )
    return points, made


def chosen(points, prediction, guide, world_size=8, **more):
    return [one.row for one in choose(points, prediction, world_size, guide, **more) if one.chosen]


def reasons(points, prediction, guide, world_size=8, **more):
    return [one.reason for one in choose(points, prediction, world_size, guide, **more)]


def test_what_is_within_keep_of_the_best_is_measured_and_the_others_say_how_far_they_are():
    made = sweep(2.0, 2.29, 2.4, 8.0)
    assert chosen(*made, GUIDE) == [0, 1]
    assert reasons(*made, GUIDE) == [
        None,
        None,
        "predicted 2.4 s a step, 20% more than the best of its size (keep=0.15)",
        "predicted 8 s a step, 300% more than the best of its size (keep=0.15)",
    ]


def test_what_surely_does_not_fit_is_no_best_and_is_left_out():
    made = sweep(1.0, 2.0, 2.2, memory=[1.2, 0.5, 0.5])
    assert chosen(*made, GUIDE) == [1, 2]
    assert reasons(*made, GUIDE)[0] == "predicted memory is 120% of a GPU's"


def test_the_spread_reaches_from_the_fastest_to_the_slowest_of_the_others():
    made = sweep(1.0, *(2.0 + n for n in range(20)))
    guide = dataclasses.replace(GUIDE, spread=0.1)
    # of the 20 others two, in the middle of each half
    assert chosen(*made, guide) == [0, 6, 16]
    assert chosen(*made, dataclasses.replace(GUIDE, spread=1.0)) == list(range(21))


def test_a_point_that_nobody_can_predict_is_measured():
    points, prediction = sweep(1.0, 9.0)
    prediction.predicted[1] = False
    assert chosen(points, prediction, GUIDE) == [0, 1]


def test_the_budget_is_shared_with_the_larger_sizes_and_the_best_comes_first():
    # 8 GPUs x 10 steps: 80, 88 GPU-seconds; then 16 GPUs x 10 x 1 s: 160
    points, prediction = sweep(1.0, 1.1, also=[(16, 1.0)])
    guide = dataclasses.replace(GUIDE, budget_gpu_s=328.0)
    assert chosen(points, prediction, guide) == [0, 1]
    # 164 GPU-seconds leave 84 for this size: the better one
    guide = dataclasses.replace(GUIDE, budget_gpu_s=164.0)
    assert chosen(points, prediction, guide) == [0]
    (_, second) = reasons(points, prediction, guide)
    assert second.startswith("budget_gpu_hours=0.0456: of the 0.0233 GPU-hours left for ")
    # what was spent is gone
    assert chosen(points, prediction, guide, spent_gpu_s=164.0) == []
    enough = dataclasses.replace(GUIDE, budget_gpu_s=244.0)
    assert chosen(points, prediction, enough, world_size=16, spent_gpu_s=80.0) == [2]


def test_without_keep_all_are_wanted_and_repeats_cost_what_they_are():
    made = sweep(1.0, 4.0)
    everything = dataclasses.replace(GUIDE, keep=None, budget_gpu_s=400.0)
    assert chosen(*made, everything) == [0, 1]
    assert chosen(*made, dataclasses.replace(everything, repeats=2)) == [0]


def test_under_a_budget_the_best_of_each_setting_comes_before_any_spread():
    # the spread's point stands first in the table, and comes last
    points, prediction = sweep(8.0, 1.0, 1.1)
    guide = dataclasses.replace(GUIDE, spread=0.5, budget_gpu_s=170.0)
    assert chosen(points, prediction, guide) == [1, 2]


def foretold(prediction, own=0.05, low=0.9, high=1.1):
    """The prediction with intervals of these shares of its steps."""
    steps = prediction.step_time_s
    return dataclasses.replace(
        prediction,
        low=low * steps,
        high=high * steps,
        layout_sigma=np.zeros(len(steps)),
        rest_sigma=np.full(len(steps), own),
        memory_sigma=np.full(len(steps), 0.05),
    )


def shown(*times, out_of_memory=()):
    """What was measured: seconds, None for what was not."""
    seconds = np.array([np.nan if one is None else one for one in times])
    failed = np.isin(np.arange(len(times)), out_of_memory)
    return Progress(measured=np.isfinite(seconds) | failed, step_time_s=seconds)


def test_what_may_gain_on_the_best_measured_is_measured_too():
    # the predicted best took three times as long: of the others those that may be faster than it
    points, prediction = sweep(3.0, 2.0, 3.4, 4.0)
    prediction, seen = foretold(prediction), shown(3.0, None, None, None)
    everything = {"guide": GUIDE, "world_size": 8}
    assert choose_again(points, prediction, seen, **everything) == [1]
    # it may cost 8 GPUs x 10 steps x 2.2 s
    poor = {**everything, "guide": dataclasses.replace(GUIDE, budget_gpu_s=400.0)}
    assert choose_again(points, prediction, seen, **poor, spent_gpu_s=224.0) == [1]
    assert choose_again(points, prediction, seen, **poor, spent_gpu_s=225.0) == []


def test_a_layout_runs_too_though_nothing_surprised_where_its_own_error_may_hide_the_best():
    # predicted a tenth slower than the best, which took what was foretold
    points, prediction = sweep(1.0, 1.1)
    seen = shown(1.0, None)
    assert choose_again(points, foretold(prediction, own=0.17), seen, 8, GUIDE) == [1]
    assert choose_again(points, foretold(prediction, own=0.05), seen, 8, GUIDE) == []


def test_layouts_that_may_gain_little_each_run_too_where_together_they_may_gain_enough():
    def again(*others):
        points, prediction = sweep(1.0, *others)
        seen = shown(1.0, *(None for _ in others))
        return choose_again(points, foretold(prediction, own=0.1), seen, 8, GUIDE)

    assert again(1.1) == []  # 0.9 % is expected to be gained
    assert again(1.1, 1.12) == [1]


def test_choosing_again_leaves_the_best_of_larger_sizes_their_part_of_a_budget():
    # 80 GPU-seconds are spent, the best of 16 GPUs takes 160, and another of 8 at most 176
    points, prediction = sweep(3.0, 2.0, also=[(16, 1.0), (16, 1.1)])
    prediction, seen = foretold(prediction), shown(3.0, None, None, None)
    for budget, added in ((80 + 160 + 176, [1]), (80 + 160 + 175, [])):
        guide = dataclasses.replace(GUIDE, budget_gpu_s=float(budget))
        assert choose_again(points, prediction, seen, 8, guide, spent_gpu_s=80.0) == added


def test_the_expected_gain_is_that_of_many_drawn_errors():
    drawn = np.random.default_rng(0).normal(size=200_000)
    for step, sigma in ((1.1, 0.17), (1.0, 0.05), (0.9, 0.1)):
        gain = float(expected_gain(step, 1.0, np.array(sigma)))
        assert gain == pytest.approx(np.maximum(0, -np.log(step) - sigma * drawn).mean(), rel=0.02)


def test_surprises_add_at_most_the_fastest_of_what_was_not_chosen_within_the_budget():
    points, prediction = sweep(1.0, 2.0, 3.0, 4.0)
    first = np.array([True, False, False, False])
    assert most_again(points, prediction, first, GUIDE) == [1, 2]
    # 8 GPUs x 10 x (1 + 2) s and a little more
    poor = dataclasses.replace(GUIDE, budget_gpu_s=250.0)
    assert most_again(points, prediction, first, poor) == [1]


def test_what_surely_does_not_fit_is_not_chosen_again():
    points, prediction = sweep(3.0, 1.0, 2.0, memory=[0.5, 1.2, 0.5])
    prediction, seen = foretold(prediction), shown(3.0, None, None)
    assert choose_again(points, prediction, seen, 8, GUIDE) == [2]


def test_a_setting_of_which_nothing_ran_is_tried_again():
    points, prediction = sweep(1.0, 2.0, 3.0)
    prediction, seen = foretold(prediction), shown(None, None, None, out_of_memory=[0])
    assert choose_again(points, prediction, seen, 8, GUIDE) == [1]


@settings(max_examples=40, deadline=None)
@given(
    times=st.lists(st.floats(0.1, 100), min_size=1, max_size=12),
    keep=st.floats(0, 3),
    spread=st.floats(0, 1),
    budget=st.floats(1, 1e5),
)
def test_the_predicted_cost_of_what_is_chosen_never_exceeds_the_budget(times, keep, spread, budget):
    made = sweep(*times)
    guide = Guide(keep=keep, spread=spread, budget_gpu_s=budget, steps=10, startup_s=1.0)
    choices = choose(*made, 8, guide)
    cost = sum(8 * (10 * times[one.row] + 1) for one in choices if one.chosen)
    assert cost <= budget * (1 + 1e-6)
    assert all((one.reason is None) == one.chosen for one in choices)
    unbound = dataclasses.replace(guide, budget_gpu_s=None)
    taken = chosen(*made, unbound)
    assert min(range(len(times)), key=times.__getitem__) in taken


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama_layouts_a100", {"spread": 0.1}),
        ("llama_layouts_h100", {"spread": 0.0}),
        # the best of 8B on 32 GPUs takes two thirds of what was predicted
        ("llama_layouts_h100", {"keep": 0.1, "spread": 0.02, "budget_gpu_s": 224 * 3600.0}),
        # the predicted best of 80B on 32 GPUs takes 3.5 times what was predicted
        ("llama_layouts_h100", {"spread": 0.1, "budget_gpu_s": 200 * 3600.0}),
    ],
)
def test_on_published_rows_a_sixth_of_the_points_finds_layouts_as_good_as_all_of_them(
    name, options
):
    path = published_csv(name)
    guide = Guide(**{"keep": 0.15, "budget_gpu_s": None, "steps": 13, **options})
    sizes = play(read_rows(path), guide)
    assert sum(one.measured for one in sizes) < 0.2 * sum(one.points for one in sizes)
    assert sum(one.gpu_hours_spent for one in sizes) < 0.2 * sum(one.gpu_hours for one in sizes)
    regrets = [regret for one in sizes for regret in one.regrets]
    assert all(regret is not None and regret < 0.01 for regret in regrets)
    assert statistics.fmean(regrets) < 0.01


def test_a_played_sweep_chooses_again_within_a_size_after_a_surprise():
    # tp 1 is predicted fastest by far and stalls; nothing but choosing again finds tp 2
    rows = [
        {"tp": 1, "dp": 8, "step_time_s": 500.0},
        {"tp": 2, "dp": 4, "step_time_s": 40.0},
        {"tp": 4, "dp": 2, "step_time_s": 45.0},
    ]
    shared = {"outcome": "ok", "micro_batch_size": 1, "global_batch_size": 64, "zero_stage": 3}
    table = table_of(*({**row, **shared} for row in rows))
    (size,) = play(as_table(table), Guide(keep=0.01, spread=0.0, budget_gpu_s=None, steps=10))
    assert size.regrets == (0.0,)


def test_a_played_sweep_counts_what_it_measured_and_what_it_missed():
    rows = [
        {"tp": 1, "dp": 8, "outcome": "ok", "step_time_s": 1.0},
        {"tp": 2, "dp": 4, "outcome": "ok", "step_time_s": 3.0},
        {"tp": 4, "dp": 2, "outcome": "ok", "step_time_s": 9.0},
        {"tp": 8, "dp": 1, "outcome": "oom"},
    ]
    table = table_of(*({**row, "global_batch_size": 512, "zero_stage": 3} for row in rows))
    everything = Guide(keep=10.0, spread=1.0, budget_gpu_s=None, steps=10, startup_s=2.0)
    (size,) = play(as_table(table), everything)
    assert (size.points, size.measured, size.regrets) == (4, 4, (0.0,))
    # 8 GPUs: ten steps of 1 + 3 + 9 s, and four starts of 2 s
    assert size.gpu_hours == size.gpu_hours_spent == pytest.approx(8 * (130 + 8) / 3600)
    nothing = dataclasses.replace(everything, budget_gpu_s=1.0)
    (size,) = play(as_table(table), nothing)
    assert (size.measured, size.gpu_hours_spent, size.regrets) == (0, 0.0, (None,))
    assert math.isclose(size.gpu_hours, 8 * 138 / 3600)
