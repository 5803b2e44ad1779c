"""Which nodes later points leave out."""

import dataclasses
import json

import pytest

from scaling.record.files import write_rows, write_table
from scaling.run import contend, exclusion, planning
from scaling.run.choices import choice_table, chosen_ids
from scaling.study.paths import StudyPaths
from scaling.study.plan_file import Allocation
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
        plan = planning.fitting_plan(study)
        first = [point for point in plan.points if not point.repeat]
        prediction = planning.predict_points(study, first)[1]
        for place, point in enumerate(first):
            seconds = float(prediction.step_time_s[place]) * (1.1 if place % 2 else 1.0)
            seconds *= 1 + 0.001 * (place % 3)
            row = row_of(point, step_time_s=seconds, hosts=[f"n{place % 2}"])
            write_rows(StudyPaths(tmp_path).row(point.point_id), [row])
        out = StudyPaths(tmp_path).choice_of_repeat(8, 1)
        text = contend.contend(study, plan, 8, 1, tmp_path, out)
        return first, chosen_ids(out), text

    return sweep


def test_a_node_whose_runs_take_longer_is_named_and_its_points_run_again(swept, tmp_path):
    first, again, text = swept()
    named = exclusion.named_slow(StudyPaths(tmp_path).excluded)
    assert named.keys() == {"n1"}
    assert "take 10% longer" in named["n1"]
    assert "n1 is left out" in text
    on_slow = {point.layout for place, point in enumerate(first) if place % 2}
    assert len(again) >= len(on_slow) == 6
    # and later points are kept off it, as long as enough nodes are left
    paths = StudyPaths(tmp_path)
    point_id = first[0].point_id
    assert exclusion.hosts_to_avoid(paths, point_id, ASKED, 4) == ["n1"]
    assert exclusion.hosts_to_avoid(paths, point_id, ASKED, 1) == []
    assert exclusion.hosts_to_avoid(paths, point_id, ASKED, 4, slow_ones=False) == []


def test_a_study_may_forbid_it(swept, tmp_path):
    swept(exclude_slow_nodes=False)
    assert not StudyPaths(tmp_path).excluded.exists()


def test_a_repeat_goes_to_nodes_that_its_layout_has_not_seen_where_there_are_enough(
    config, write_study, tmp_path
):
    paths = StudyPaths(tmp_path)
    study = study_of(config, write_study, measure=MEASURE)
    (again,) = [p for p in planning.fitting_plan(study).points if p.repeat == 1]
    hosts = {again.point_id: ["n1", "n2"]}
    write_table(paths.choice_of_repeat(8, 1), choice_table([again], {}, hosts=hosts))
    paths.excluded.write_text(json.dumps({"n3": "slow"}))
    repeat = dataclasses.replace(ASKED, repeat=1)

    def avoided(nodes):
        return exclusion.hosts_to_avoid(paths, again.point_id, repeat, nodes)

    assert avoided(4) == ["n1", "n2", "n3"]
    assert avoided(3) == ["n3"]
    assert avoided(1) == []


def test_a_file_that_names_nobody_excludes_nobody(tmp_path):
    for text in ("", "[]", "{"):
        (tmp_path / "excluded.json").write_text(text)
        assert exclusion.named_slow(tmp_path / "excluded.json") == {}
