"""The price of a study by its `measure:`."""

import dataclasses

import pytest
import yaml

from scaling.cli import show
from scaling.run import planning, price
from scaling.study import grid
from tests.plans import fitting_plan
from tests.run.test_planning import study_of

GRID = {
    "model": "mini",
    "world_size": [8, 16],
    "global_batch_size": 2048,
    "zero_stage": [1, 3],
    "tp": [1, 2],
}
SHORT = {"accumulation": "short", "measured_steps": {"at_least": 5, "until": 0.01}}


def priced(config, write_study, **measure):
    study = study_of(config, write_study, measure=measure, **GRID)
    return price.price_of(study, fitting_plan(study))


def test_short_steps_and_a_guide_each_make_it_cheaper_and_both_cheapest(config, write_study):
    full = priced(config, write_study).step_gpu_hours
    short = priced(config, write_study, **SHORT).step_gpu_hours
    both = priced(config, write_study, **SHORT, guided=True).step_gpu_hours
    assert both < short < full
    assert both < priced(config, write_study, guided=True).step_gpu_hours <= full
    # of 256 micro-batches a step: 8 steps of them against 3 warm-ups and 10 steps in full
    study = study_of(config, write_study, measure=SHORT, **GRID)
    points = [dataclasses.replace(p, accumulation="short") for p in fitting_plan(study).points]
    no_full = price.price_of(study, grid.Plan(points=tuple(points), refusals=()))
    assert no_full.step_gpu_hours / full < 0.1


def test_a_guided_sweep_is_priced_by_rounds_on_rows_drawn_by_predictions(config, write_study):
    kept = priced(config, write_study, guided=True).points
    assert 2 <= kept < priced(config, write_study).points  # at least the best of each size
    (more,) = {priced(config, write_study, guided=True, repeats=3).points for _ in range(2)}
    assert more > kept


def test_the_predicted_best_and_one_of_each_size_run_in_full_as_well(config, write_study):
    study = study_of(config, write_study, measure=SHORT, **GRID)
    points = planning.fit(study, grid.expand_grid(study))
    both = [point for point in points.points if point.accumulation == "both"]
    assert {point.world_size for point in both} == {8, 16}
    assert len(both) <= 4
    assert {point.accumulation for point in points.points} == {"both", "short"}
    # what runs in full as well is the same point: predictions that change measure nothing again
    grids = grid.expand_grid(study).points
    assert [p.point_id for p in points.points] == [p.point_id for p in grids]


def test_the_plan_leads_with_the_keys_that_make_it_affordable(config, write_study, capsys):
    study = study_of(config, write_study, **GRID)
    plan = fitting_plan(study)
    own, cheap = price.price_of(study, plan), price.cheapest_price(study)
    show.show_plan(study, plan, None, own, cheap)
    printed = capsys.readouterr().out
    assert cheap.gpu_hours < own.gpu_hours < 10  # so few are told with a decimal
    sentence = f"about {cheap.gpu_hours:.1f} GPU-hours instead of {own.gpu_hours:.1f}"
    assert printed.index(sentence) < printed.index("8 points, strong scaling")
    # as printed they are what a study may say, and then the plan has nothing cheaper to offer
    (line,) = [line for line in printed.splitlines() if line.startswith("  measure: ")]
    cheaper = study_of(config, write_study, **yaml.safe_load(line), **GRID)
    assert cheaper.measure.guided is True
    assert price.price_of(cheaper, fitting_plan(cheaper)).gpu_hours == pytest.approx(
        cheap.gpu_hours, rel=0.01
    )
    assert price.cheapest_price(cheaper) is None


def test_a_study_of_which_nothing_is_predicted_to_fit_has_no_cheap_way(config, write_study):
    huge = {"model": "huge", "world_size": 8, "zero_stage": 0, "global_batch_size": 64}
    study = study_of(config, write_study, measure={"measure_oom": True}, **huge)
    assert price.cheapest_price(study) is None


def test_what_is_only_predicted_has_no_price(config, write_study):
    study = study_of(config, write_study, measure=SHORT, **GRID)
    plan = fitting_plan(study)
    only = dataclasses.replace(study, mode="predict")
    assert price.price_of(only, plan) is price.cheapest_price(only) is None
