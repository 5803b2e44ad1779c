"""What a guided sweep of `scaling run` chooses for again, by the rows that are there."""

import dataclasses

import pytest

from scaling.errors import InputError
from scaling.record.files import write_rows
from scaling.run import plan_writer
from scaling.run import sweep as sweeps
from scaling.run.choices import chosen_ids
from scaling.run.choose import choose
from scaling.run.plan_writer import StudyPlan
from scaling.run.progress import watch_study
from scaling.study.paths import StudyPaths
from tests.plans import fitting_plan
from tests.rows import row_of
from tests.run.test_planning import study_of

pytestmark = pytest.mark.slow

GRID = {
    "model": "mini",
    "world_size": [8, 16],
    "global_batch_size": 512,
    "zero_stage": [0, 1, 2, 3],
}


class Sweep:
    """A guided study in a folder, whose points take as many times what is predicted as said."""

    def __init__(self, folder, config, write_study, *, axes=GRID, **measure):
        self.study = study_of(
            config, write_study, measure={"keep": 0.0, "spread": 0.0} | measure, **axes
        )
        self.planned, self.folder = fitting_plan(self.study), folder
        self.paths = StudyPaths(folder)

    def choose(self, turn=0, world_size=8):
        out = self.paths.choice_again(world_size, turn) if turn else self.paths.choice(world_size)
        text = choose(self.study, self.planned, world_size, self.folder, out, turn=turn)
        return chosen_ids(out), text

    def measure(self, names, times=1.0, **changes):
        for point in self.planned.points:
            if point.point_id in names:
                seconds = times * point.expected_step_s
                row = row_of(point, **{"step_time_s": seconds, "duration_s": 60.0} | changes)
                write_rows(self.paths.row(point.point_id), [row])

    def write_plan(self):
        made = {"about": "{}", "spend": None, "probe_plan": None, "made_from": ""}
        plan = StudyPlan(study=self.study, plan=self.planned, folder=self.folder, **made)
        plan_writer.write_plan(plan)

    def progress(self):
        return watch_study(self.study, self.planned.points, self.folder).look()


@pytest.fixture
def sweep(tmp_path, config, write_study):
    return lambda **measure: Sweep(tmp_path / "sweep", config, write_study, **measure)


def test_where_all_is_measured_nothing_is_added(sweep):
    calm = sweep(keep=10.0)
    names, _ = calm.choose()
    calm.measure(names)
    added, text = calm.choose(turn=1)
    assert added == []
    assert text.startswith("world_size=8: 0 points are measured too; calibrated on 4 rows of this")
    assert calm.choose(turn=2)[1].startswith("world_size=8: the last choice added nothing")


def test_after_a_surprise_the_next_best_is_measured_too_and_its_own_surprise_is_the_next(sweep):
    odd = sweep()
    (first,), _ = odd.choose()
    odd.measure([first], times=20)
    (second,), text = odd.choose(turn=1)
    assert second != first
    assert text.startswith("world_size=8: 1 points are measured too; calibrated on 1 ")
    odd.measure([second], times=30)
    (third,), _ = odd.choose(turn=2)
    assert third not in (first, second)
    # after a kill the files say the same: what a turn adds is not what it finds already measured
    odd.paths.choice_again(8, 2).unlink()
    assert odd.choose(turn=2)[0] == [third]
    with pytest.raises(InputError, match="--again 3: a size is chosen for again 2 times at most"):
        odd.choose(turn=3)


def test_each_engine_is_calibrated_on_the_commonest_software_of_its_own(
    tmp_path, config, write_study
):
    axes = GRID | {"engine": ["deepspeed", "torch"]}
    both = Sweep(tmp_path / "sweep", config, write_study, axes=axes, keep=10.0)
    names, _ = both.choose()
    for point in both.planned.points:
        fingerprint = point.layout.engine
        if point.layout.engine == "deepspeed" and point.layout.zero_stage == 1:
            fingerprint = "earlier"
        both.measure({point.point_id} & set(names), stack_fingerprint=fingerprint)
    measured = sum(path.is_file() for path in both.paths.rows.iterdir())
    text = both.choose(world_size=16)[1]
    assert f"calibrated on {measured - 1} rows of smaller sizes; 1 have other software" in text


def test_short_steps_and_an_out_of_memory_surprise_like_a_full_step(sweep):
    for changes in (
        {"step_time_kind": "extended", "step_time_s": None, "extended_step_time_s": 99.0},
        {"outcome": "oom", "step_time_s": None},
    ):
        odd = sweep()
        names, _ = odd.choose()
        odd.measure(names, **changes)
        assert len(odd.choose(turn=1)[0]) == 1


def test_surprises_spend_no_more_than_is_left_of_the_budget(sweep):
    odd = sweep(budget_gpu_hours=1.0)
    names, _ = odd.choose()
    odd.measure(names, times=20, duration_s=460.0)  # x 8 GPUs = 1.02 GPU-hours
    assert odd.choose(turn=1)[0] == []
    odd.measure(names, times=20, duration_s=60.0)
    assert len(odd.choose(turn=1)[0]) == 1
    # an attempt that was set aside for a retry has been paid for too
    late = row_of(odd.planned.points[0], outcome="timeout", step_time_s=None, duration_s=460.0)
    write_rows(odd.paths.retried / "one.1.parquet", [late])
    assert odd.choose(turn=1)[0] == []


def test_a_raised_budget_does_not_pay_for_measured_points_again(sweep):
    poor = sweep(keep=10.0, budget_gpu_hours=0.9)
    names, _ = poor.choose()
    assert len(names) == 2  # of 4, at 0.15 GPU-hours each
    poor.measure(names)
    richer = sweep(keep=10.0, budget_gpu_hours=1.4)
    assert len(richer.choose()[0]) == 3


def test_a_study_that_is_edited_while_it_runs_is_not_chosen_for(sweep):
    odd = sweep()
    odd.write_plan()
    assert odd.choose()[0]
    odd.planned = dataclasses.replace(odd.planned, points=odd.planned.points[1:])
    with pytest.raises(InputError, match=r"has other points or refusals than .*plan.json, as when"):
        odd.choose()


def test_a_choice_of_points_that_an_edited_study_no_longer_has_is_made_anew(sweep):
    odd = sweep()
    (chosen,), _ = odd.choose()
    odd.choose(world_size=16)
    odd.write_plan()
    assert odd.progress().undecided == 6
    kept = tuple(point for point in odd.planned.points if point.point_id != chosen)
    odd.planned = dataclasses.replace(odd.planned, points=kept)
    odd.write_plan()
    assert not odd.paths.choice(8).exists()
    assert odd.paths.choice(16).exists()


def test_all_repeats_of_what_is_added_run_and_status_counts_them_and_the_choices_to_come(sweep):
    odd = sweep(repeats=2)
    names, _ = odd.choose()
    odd.choose(world_size=16)
    odd.measure(names, times=20)
    waiting = odd.progress()
    assert (waiting.undecided, waiting.finished) == (6, False)
    assert "6 choices to make" in waiting.line()
    added, _ = odd.choose(turn=1)
    assert len(added) == 2
    after = odd.progress()
    assert (after.total, after.undecided) == (waiting.total + 2, 5)


def test_a_node_that_the_rows_of_a_size_show_to_be_slow_is_left_out_of_the_larger_ones(sweep):
    for forbidden in (True, False):
        odd = sweep(keep=10.0, repeats=3, exclude_slow_nodes=not forbidden)
        for place, point in enumerate(odd.planned.points):
            if point.world_size == 8:
                slow = place % 3 == 0
                host = {"hosts": ["n0" if slow else f"n{place % 3}"]}
                odd.measure([point.point_id], times=1.2 if slow else 1.0, **host)
        _, text = odd.choose(world_size=16)
        assert ("n0 is left out: its" in text) is not forbidden
        assert odd.paths.excluded.exists() is not forbidden


def test_each_choice_has_its_file(sweep):
    study = sweep()
    names = {
        path.name
        for path in sweeps.Sweep(study.study, study.planned.points, study.folder).choice_files
    }
    assert names == {
        f"{size}{turn}.parquet"
        for size in (8, 16)
        for turn in ("", ".again1", ".again2", ".elsewhere")
    }
