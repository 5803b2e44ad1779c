"""One lack of memory rules out larger micro-batches: what that does to price and order."""

import pytest

from scaling.run import plan_writer, price
from scaling.run.plan_writer import StudyPlan, random_fraction
from scaling.study import grid
from scaling.study.plan_file import read_json_object
from scaling.study.time_limits import TYPICAL_STARTUP_S
from tests.plans import fitting_plan
from tests.run.test_planning import study_of

HUGE = {
    "model": "huge", "world_size": 8, "zero_stage": 0, "global_batch_size": 64,
    "micro_batch_size": [1, 2, 4],
}  # fmt: skip


def test_only_the_smallest_micro_batch_that_does_not_fit_takes_a_start(config, write_study):
    study = study_of(config, write_study, measure={"measure_oom": True}, **HUGE)
    plan = fitting_plan(study)
    one = price.price_of(study, plan)
    assert (one.points, one.step_gpu_hours) == (0, 0.0)
    assert one.startup_gpu_hours == pytest.approx(8 * TYPICAL_STARTUP_S / 3600)


def test_twins_run_by_micro_batch_and_all_points_in_the_seeds_order(config, write_study, tmp_path):
    choices = {"world_size": 8, "global_batch_size": 64, "micro_batch_size": [4, 1, 2]}
    study = study_of(config, write_study, model="mini", tp=[1, 2], zero_stage=[1, 3], **choices)
    plan = grid.expand_grid(study)
    planned = StudyPlan(study=study, folder=tmp_path, plan=plan, probe_plan=None, made_from="")
    plan_writer.write_plan(planned)
    order = list(read_json_object(tmp_path / "plan.json")["points"])
    points = {point.point_id: point for point in plan.points}
    ran: dict[tuple[int, int], list[int]] = {}
    for name in order:
        layout = points[name].layout
        ran.setdefault((layout.tp, layout.zero_stage), []).append(layout.micro_batch_size)
    assert set(map(tuple, ran.values())) == {(1, 2, 4)}
    # families are drawn: their places are those of the drawn points
    seed = study.measure.seed
    drawn = sorted(points, key=lambda name: random_fraction(seed, name))
    family = {name: (point.layout.tp, point.layout.zero_stage) for name, point in points.items()}
    assert [family[name] for name in order] == [family[name] for name in drawn]


def test_a_point_that_comes_moves_no_other_in_the_random_order():
    def shuffled(names, seed, purpose="order"):
        return sorted(names, key=lambda name: random_fraction(seed, name, purpose))

    names = [f"p{number}" for number in range(40)]
    orders = [shuffled(names, 1), shuffled(names, 2), shuffled(names, 1, "in full")]
    assert len({tuple(order) for order in [names, *orders]}) == 4
    assert [name for name in shuffled([*names, "another"], 1) if name in names] == orders[0]
