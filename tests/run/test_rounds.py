"""The points that rounds of a study choose, and the nodes that later points leave out."""

import dataclasses
import json

import pyarrow as pa
import pytest

from scaling.errors import InputError
from scaling.predict.fit import calibrate
from scaling.record.files import read_round, write_rows, write_table
from scaling.run import plan_writer, rounds
from scaling.run.plan_writer import StudyPlan
from scaling.run.rounds import choose
from scaling.run.status import watch_study
from scaling.run.sweep import hosts_to_avoid
from scaling.study.paths import StudyPaths
from scaling.study.plan_file import Allocation, read_json_object
from tests.plans import fitting_plan
from tests.points import tiny_point
from tests.rows import row_of
from tests.run.test_planning import study_of

GRID = {
    "model": "mini",
    "world_size": [8, 16],
    "global_batch_size": 512,
    "zero_stage": [0, 1, 2, 3],
}
EXTENDED = {
    "step_time_kind": "extended", "step_time_s": None, "extended_step_time_s": 1.001,
    "extended_low_s": 0.999, "extended_high_s": 1.003,
}  # fmt: skip


class Sweep:
    """A study in a folder, whose points take as many times what is predicted as said."""

    def __init__(self, folder, config, write_study, *, axes=GRID, nodes=None, **measure):
        study = study_of(config, write_study, measure=measure, **axes)
        if nodes is not None:
            there = dataclasses.replace(study.clusters["there"], nodes=nodes)
            study = dataclasses.replace(study, clusters=study.clusters | {"there": there})
        self.study = study
        self.planned, self.folder = fitting_plan(self.study), folder
        self.paths = StudyPaths(folder)

    def choose(self, number=1):
        """The points that the round chooses, and the sentence about it."""
        out = self.paths.round(number)
        text = choose(self.study, self.planned, number, self.folder, out)
        return read_round(out)[0], text

    def measure(self, names, times=1.0, **changes):
        for point in self.planned.points:
            if point.point_id in names:
                seconds = times * point.expected_step_s
                row = row_of(point, **{"step_time_s": seconds, "duration_s": 60.0} | changes)
                write_rows(self.paths.row(point.point_id), [row])

    def write_plan(self):
        made = {"probe_plan": None, "made_from": ""}
        plan = StudyPlan(study=self.study, plan=self.planned, folder=self.folder, **made)
        plan_writer.write_plan(plan)

    def of_size(self, world_size):
        return {p.point_id for p in self.planned.points if p.world_size == world_size}

    def progress(self):
        return watch_study(self.study, self.planned.points, self.folder).look()


@pytest.fixture
def sweep(tmp_path, config, write_study):
    return lambda **options: Sweep(tmp_path / "sweep", config, write_study, **options)


@pytest.fixture
def guided(sweep, monkeypatch):
    monkeypatch.setattr(rounds, "SPREAD", 0.0)
    return lambda **options: sweep(**{"guided": True} | options)


@pytest.mark.parametrize(
    "changes",
    [
        EXTENDED | {"extended_step_time_s": 99.0, "extended_low_s": 98.0, "extended_high_s": 100.0},
        {"outcome": "oom", "step_time_s": None},
    ],
)
def test_short_steps_and_lack_of_memory_surprise_like_a_full_step(guided, changes):
    odd = guided()
    names, _ = odd.choose()
    odd.measure(names, **changes)
    assert odd.choose(2)[0]


def test_each_engine_is_calibrated_on_the_commonest_software_of_its_own(guided):
    both = guided(axes=GRID | {"engine": ["deepspeed", "torch"]})
    for point in both.planned.points:
        if point.world_size == 8:
            fingerprint = point.layout.engine
            if point.layout.engine == "deepspeed" and point.layout.zero_stage == 1:
                fingerprint = "earlier"
            both.measure({point.point_id}, stack_fingerprint=fingerprint)
    measured = len(both.of_size(8))
    text = both.choose()[1]
    assert f"calibrated on {measured - 1} rows; 1 have other software" in text


def test_after_a_fit_that_fails_a_round_goes_by_data_sheets(guided, monkeypatch):
    def fail(*_, **__):
        raise ValueError("odd")

    odd = guided()
    odd.measure(odd.choose()[0])
    monkeypatch.setattr(calibrate, "calibrate", fail)
    assert "from data-sheet numbers: the fit failed (ValueError: odd)" in odd.choose(2)[1]


def test_rounds_spend_no_more_than_is_left_of_the_budget(guided):
    odd = guided(budget_gpu_hours=1.0, axes=GRID | {"world_size": 8})
    names, _ = odd.choose()
    assert names
    odd.measure(names, times=20, duration_s=460.0)  # x 8 GPUs = 1.02 GPU-hours
    assert odd.choose(2)[0] == []
    assert odd.progress().finished
    odd.measure(names, times=20, duration_s=60.0)
    assert odd.choose(2)[0]
    # an attempt that was set aside for a retry has been paid for too
    late = row_of(odd.planned.points[0], outcome="timeout", step_time_s=None, duration_s=460.0)
    write_rows(odd.paths.retried / "one.1.parquet", [late])
    assert odd.choose(2)[0] == []


def test_a_point_beyond_the_budget_says_so(guided):
    poor = guided(budget_gpu_hours=0.01)
    assert poor.choose()[0] == []
    assert "GPU-hours" in poor.progress().line() or poor.progress().finished


def test_a_study_that_is_edited_while_it_runs_is_not_chosen_for(guided):
    odd = guided()
    odd.write_plan()
    assert odd.choose()[0]
    odd.planned = dataclasses.replace(odd.planned, points=odd.planned.points[1:])
    with pytest.raises(InputError, match=r"has other points or refusals than .*plan.json, as when"):
        odd.choose()


def test_an_edited_study_starts_its_rounds_anew_and_keeps_what_was_measured(guided):
    odd = guided()
    odd.write_plan()
    names, _ = odd.choose()
    odd.measure(names)
    odd.choose(2)
    odd.planned = dataclasses.replace(
        odd.planned, points=tuple(p for p in odd.planned.points if p.point_id != names[0])
    )
    odd.write_plan()
    assert odd.paths.rounds() == []
    assert set(odd.choose()[0]) >= set(names[1:])


def test_all_repeats_of_a_layout_run_with_it_and_status_counts_them(guided, monkeypatch):
    monkeypatch.setattr(rounds, "KEEP", 0.0)
    odd = guided(repeats=2)
    waiting = odd.progress()
    assert (waiting.total, waiting.undecided, waiting.finished) == (16, 1, False)
    names, _ = odd.choose()
    assert len(names) == 4
    odd.measure(names)
    now = odd.progress()
    assert (now.total, now.done, now.undecided, now.finished) == (4, 4, 1, False)
    assert "a further round may add points" in now.line()
    added, _ = odd.choose(2)
    assert odd.progress().total == 4 + len(added)


def test_who_may_be_the_best_runs_once_more_whatever_kind_its_step_is(sweep):
    repeats = {"repeats": {"at_most": 2, "for": "contenders"}}
    axes = {"world_size": 8, "global_batch_size": 512, "zero_stage": [0, 1, 2, 3]}
    close = sweep(axes=axes, **repeats)
    said = {0: {"step_time_s": 1.0}, 1: EXTENDED, 2: {"outcome": "oom"}, 3: {"step_time_s": 1.5}}
    for point in close.planned.points:
        if not point.repeat:
            changes = {"hosts": [f"n{point.layout.zero_stage}"], **said[point.layout.zero_stage]}
            write_rows(close.paths.row(point.point_id), [row_of(point, **changes)])
    names, text = close.choose()
    assert text.startswith("round 1: 2 points are measured; all ran")
    stages = {p.point_id: p.layout.zero_stage for p in close.planned.points if p.repeat == 1}
    assert {stages[name] for name in names} == {0, 1}


def test_a_study_without_rounds_is_told_what_makes_some(sweep):
    plain = sweep(axes={"world_size": 8}, nodes=1)
    with pytest.raises(InputError, match="no round chooses points: that needs guided: true"):
        plain.choose()


# slow nodes: twelve layouts of a size on two nodes in turn; n1 takes a tenth longer
TWELVE = {
    "world_size": 8, "global_batch_size": 2048, "micro_batch_size": 16, "zero_stage": [0, 1, 2],
    "fused_norm": [False, True], "fused_rope": [False, True],
}  # fmt: skip


def on_two_nodes(sweep):
    """Rows of all points, every other one on the slow host."""
    for place, point in enumerate(sweep.planned.points):
        slow = place % 2
        times = (1.1 if slow else 1.0) * (1 + 0.001 * (place % 3))
        sweep.measure({point.point_id}, times=times, hosts=["n1" if slow else "n0"])


def test_no_run_is_added_if_too_few_other_nodes_are_left(sweep):
    plain = sweep(axes=TWELVE | {"world_size": 16}, nodes=2)
    on_two_nodes(plain)
    added, text = plain.choose()
    assert "n1 is left out: its 6 runs take 10% longer" in text
    assert added == []


def test_a_study_may_forbid_the_exclusion_of_slow_nodes(guided):
    for forbidden in (True, False):
        odd = guided(axes=TWELVE, nodes=4, exclude_slow_nodes=not forbidden)
        on_two_nodes(odd)
        text = odd.choose()[1]
        assert ("n1 is left out: its" in text) is not forbidden
        assert odd.paths.excluded.exists() is not forbidden


ASKED = Allocation(world_size=8, nodes=1, ranks_per_node=8, minutes=5)


def test_a_point_whose_attempt_lost_a_node_runs_on_other_nodes(tmp_path):
    paths, point = StudyPaths(tmp_path), tiny_point()
    failed = {"step_time_s": None, "error_message": "no"}
    for attempt, outcome, host in ((1, "node_failed", "n1"), (2, "timeout", "n2")):
        row = row_of(point, outcome=outcome, hosts=[host], attempt=attempt, **failed)
        write_rows(paths.retried / f"{point.point_id}.{attempt}.parquet", [row])
    assert hosts_to_avoid(paths, point.point_id, ASKED, 4) == ["n1"]
    assert hosts_to_avoid(paths, point.point_id, ASKED, 1) == []
    assert hosts_to_avoid(paths, "other", ASKED, 4) == []


def test_a_repeat_goes_to_nodes_new_to_its_layout_if_enough_are_left(tmp_path):
    paths = StudyPaths(tmp_path)
    again = [{"point_id": "p", "hosts": ["n1", "n2"]}, {"point_id": "q", "hosts": ["n4"]}]
    write_table(paths.round(1), pa.Table.from_pylist(again))
    paths.excluded.write_text(json.dumps({"n3": "slow"}))
    repeat = dataclasses.replace(ASKED, repeat=1)

    def avoided(nodes):
        return hosts_to_avoid(paths, "p", repeat, nodes)

    assert avoided(4) == ["n1", "n2", "n3"]
    assert avoided(3) == ["n3"]
    assert avoided(1) == []


def test_a_file_that_names_nobody_excludes_nobody(tmp_path):
    for text in ("", "[]", "{"):
        (tmp_path / "excluded.json").write_text(text)
        assert read_json_object(tmp_path / "excluded.json") == {}
