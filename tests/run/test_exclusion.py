"""Which nodes later points leave out."""

import dataclasses
import json

import pytest

from scaling.errors import InputError
from scaling.record.files import write_rows, write_table
from scaling.run import predictions
from scaling.run.choices import choice_table, chosen_ids
from scaling.run.choose import allocation_of_added, choose
from scaling.run.progress import watch_study
from scaling.run.sweep import Sweep, hosts_to_avoid
from scaling.study.paths import StudyPaths
from scaling.study.plan_file import Allocation, read_json_object
from scaling.study.point import point_from_json
from tests.plans import fitting_plan
from tests.points import tiny_point
from tests.rows import row_of
from tests.run.test_planning import study_of

GRID = {"world_size": 8, "global_batch_size": 2048, "micro_batch_size": [1, 2, 4, 8, 16, 32]}
MEASURE = {"repeats": {"at_most": 3, "for": "contenders"}}
ASKED = Allocation(world_size=8, nodes=1, ranks_per_node=8, minutes=5)


@pytest.fixture
def swept(config, write_study, tmp_path):
    """Twelve layouts on two nodes in turn; what runs on n1 takes a tenth longer than predicted."""

    def sweep(**measure):
        study = study_of(config, write_study, measure=MEASURE | measure, zero_stage=[1, 3], **GRID)
        plan = fitting_plan(study)
        first = [point for point in plan.points if not point.repeat]
        measured(first, study, StudyPaths(tmp_path), slow=lambda place: place % 2)
        out = StudyPaths(tmp_path).choice_of_repeat(8, 1)
        text = choose(study, plan, 8, tmp_path, out, repeat=1)
        return first, chosen_ids(out), text

    return sweep


@pytest.fixture
def plain(config, write_study):
    """Twelve layouts of a size on a cluster of four nodes, without contenders, and their plan."""

    def make(*, nodes=4, measure=None, **axes):
        grid = GRID | axes
        study = study_of(config, write_study, measure=measure or {}, zero_stage=[1, 3], **grid)
        clusters = {
            name: dataclasses.replace(cluster, nodes=nodes)
            for name, cluster in study.clusters.items()
        }
        study = dataclasses.replace(study, clusters=clusters)
        return study, fitting_plan(study)

    return make


def measured(points, study, paths, slow, host="n1"):
    """Rows of these points: those that are `slow` on that host, a tenth slower than predicted."""
    prediction = predictions.predict_points(study, points)[1]
    for place, point in enumerate(points):
        seconds = float(prediction.step_time_s[place]) * (1.1 if slow(place) else 1.0)
        hosts = [host if slow(place) else "n0"]
        row = row_of(point, step_time_s=seconds * (1 + 0.001 * (place % 3)), hosts=hosts)
        write_rows(paths.row(point.point_id), [row])


def test_a_node_whose_runs_take_longer_is_named_and_its_points_run_again(swept, tmp_path):
    first, again, text = swept()
    named = read_json_object(StudyPaths(tmp_path).excluded)
    assert named.keys() == {"n1"}
    assert "take 10% longer" in named["n1"]
    assert "n1 is left out" in text
    on_slow = {point.layout for place, point in enumerate(first) if place % 2}
    assert len(again) >= len(on_slow) == 6
    # and later points are kept off it, as long as enough nodes are left
    paths = StudyPaths(tmp_path)
    point_id = first[0].point_id
    assert hosts_to_avoid(paths, point_id, ASKED, 4) == ["n1"]
    assert hosts_to_avoid(paths, point_id, ASKED, 1) == []
    assert hosts_to_avoid(paths, point_id, ASKED, 4, slow_ones=False) == []


def test_a_point_whose_attempt_lost_a_node_runs_on_other_nodes(tmp_path):
    paths, point = StudyPaths(tmp_path), tiny_point()
    failed = {"step_time_s": None, "error_message": "no"}
    for attempt, outcome, host in ((1, "node_failed", "n1"), (2, "timeout", "n2")):
        row = row_of(point, outcome=outcome, hosts=[host], attempt=attempt, **failed)
        write_rows(paths.retried / f"{point.point_id}.{attempt}.parquet", [row])
    assert hosts_to_avoid(paths, point.point_id, ASKED, 4) == ["n1"]
    assert hosts_to_avoid(paths, point.point_id, ASKED, 1) == []
    assert hosts_to_avoid(paths, "other", ASKED, 4) == []


def test_a_sweep_without_contenders_runs_what_slow_nodes_ran_once_more_and_counts_both_rows(
    plain, tmp_path
):
    study, plan = plain()
    paths = StudyPaths(tmp_path)
    measured(plan.points, study, paths, slow=lambda place: place % 2)
    watcher = watch_study(study, plan.points, tmp_path)
    before = watcher.look()
    assert (before.total, before.undecided, before.finished) == (12, 1, False)
    text = choose(study, plan, 8, tmp_path, paths.choice_elsewhere(8), elsewhere=True)
    assert text.startswith("world_size=8: 6 layouts ran on slow nodes only and run once more")
    assert "n1 is left out" in text
    added = chosen_ids(paths.choice_elsewhere(8))
    on_slow = {point.layout for place, point in enumerate(plan.points) if place % 2}
    again = [point_from_json(paths.point(name).read_text()) for name in added]
    assert {point.layout for point in again} == on_slow
    by_layout = {point.layout: point for point in plan.points}
    assert {point.repeat for point in again} == {1}
    assert allocation_of_added(paths, added[0]) == dataclasses.replace(
        by_layout[again[0].layout].allocation, repeat=1
    )
    assert not set(added) & {point.point_id for point in plan.points}
    now = watcher.look()
    assert (now.total, now.done, now.undecided) == (18, 12, 0)
    # made anew, also after its rows are there, the choice is the same
    measured(again, study, paths, slow=lambda place: False)
    choose(study, plan, 8, tmp_path, paths.choice_elsewhere(8), elsewhere=True)
    assert sorted(chosen_ids(paths.choice_elsewhere(8))) == sorted(added)
    assert watcher.look().finished


def test_where_no_other_node_is_left_nothing_runs_once_more(plain, tmp_path):
    study, plan = plain(world_size=16, nodes=2)
    paths = StudyPaths(tmp_path)
    measured(plan.points, study, paths, slow=lambda place: place % 2)
    text = choose(study, plan, 16, tmp_path, paths.choice_elsewhere(16), elsewhere=True)
    assert "n1 is left out" in text
    assert chosen_ids(paths.choice_elsewhere(16)) == []


def test_a_node_that_a_larger_size_names_sends_the_smaller_ones_points_elsewhere_too(
    plain, tmp_path
):
    study, plan = plain(world_size=[8, 16])
    paths = StudyPaths(tmp_path)
    small = [point for point in plan.points if point.world_size == 8]
    measured(
        plan.points, study, paths,
        slow=lambda place: place == 0 or (place >= len(small) and place % 2),
    )  # fmt: skip
    choose(study, plan, 8, tmp_path, paths.choice_elsewhere(8), elsewhere=True)
    assert chosen_ids(paths.choice_elsewhere(8)) == []
    choose(study, plan, 16, tmp_path, paths.choice_elsewhere(16), elsewhere=True)
    added = chosen_ids(paths.choice_elsewhere(16))
    sizes = [point_from_json(paths.point(name).read_text()).world_size for name in added]
    assert sizes.count(8) == 1


def test_a_second_slow_node_is_named_though_layouts_of_the_first_ran_twice(plain, tmp_path):
    study, plan = plain(world_size=[8, 16])
    paths = StudyPaths(tmp_path)
    of_size = {
        size: [point for point in plan.points if point.world_size == size] for size in (8, 16)
    }
    measured(of_size[8], study, paths, slow=lambda place: place % 2)
    choose(study, plan, 8, tmp_path, paths.choice_elsewhere(8), elsewhere=True)
    names = chosen_ids(paths.choice_elsewhere(8))
    again = [point_from_json(paths.point(name).read_text()) for name in names]
    measured(again, study, paths, slow=lambda place: False)
    measured(of_size[16], study, paths, slow=lambda place: place % 2, host="n2")
    text = choose(study, plan, 16, tmp_path, paths.choice_elsewhere(16), elsewhere=True)
    assert read_json_object(paths.excluded).keys() == {"n1", "n2"}
    assert text.startswith(f"world_size=16: {len(of_size[16]) // 2} layouts ran on slow nodes only")


@pytest.mark.parametrize(
    "changes",
    [
        {"measure": {"exclude_slow_nodes": False}},
        {"measure": MEASURE},
        {"nodes": 1},
        {"reported": True},
    ],
    ids=["forbidden", "contenders", "one node", "an older study that has its report"],
)
def test_nothing_runs_once_more_elsewhere_where(plain, tmp_path, changes):
    reported = changes.pop("reported", False)
    study, plan = plain(**changes)
    paths = StudyPaths(tmp_path)
    if reported:
        paths.report.touch()
    assert not Sweep(study, plan.points, tmp_path).has_reruns
    with pytest.raises(InputError, match="no layout runs once more elsewhere"):
        choose(study, plan, 8, tmp_path, paths.choice_elsewhere(8), elsewhere=True)
    if reported:  # by a plan that lets it, or a report of predictions
        for text, may in (
            ('{"elsewhere": true, "measured": true}', True),
            ('{"elsewhere": false, "measured": true}', False),
            ('{"elsewhere": false, "measured": false}', True),
        ):
            paths.plan.write_text(text)
            assert Sweep(study, plan.points, tmp_path).has_reruns is may


def test_a_study_may_forbid_it(swept, tmp_path):
    swept(exclude_slow_nodes=False)
    assert not StudyPaths(tmp_path).excluded.exists()


def test_a_repeat_goes_to_nodes_that_its_layout_has_not_seen_where_there_are_enough(
    config, write_study, tmp_path
):
    paths = StudyPaths(tmp_path)
    study = study_of(config, write_study, measure=MEASURE)
    (again,) = [p for p in fitting_plan(study).points if p.repeat == 1]
    hosts = {again.point_id: ["n1", "n2"]}
    write_table(paths.choice_of_repeat(8, 1), choice_table([again], {}, {"hosts": hosts}))
    paths.excluded.write_text(json.dumps({"n3": "slow"}))
    repeat = dataclasses.replace(ASKED, repeat=1)

    def avoided(nodes):
        return hosts_to_avoid(paths, again.point_id, repeat, nodes)

    assert avoided(4) == ["n1", "n2", "n3"]
    assert avoided(3) == ["n3"]
    assert avoided(1) == []


def test_a_file_that_names_nobody_excludes_nobody(tmp_path):
    for text in ("", "[]", "{"):
        (tmp_path / "excluded.json").write_text(text)
        assert read_json_object(tmp_path / "excluded.json") == {}
