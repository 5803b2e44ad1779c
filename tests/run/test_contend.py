"""Which layouts of a size run once more."""

import pytest

from scaling.errors import InputError
from scaling.record.files import write_rows
from scaling.run.choices import chosen_ids
from scaling.run.choose import choose
from scaling.study.load import load_study
from scaling.study.paths import StudyPaths
from tests.plans import fitting_plan
from tests.rows import row_of

EXTENDED = {
    "step_time_kind": "extended", "step_time_s": None, "extended_step_time_s": 1.001,
    "extended_low_s": 0.999, "extended_high_s": 1.003,
}  # fmt: skip


def study_of(config, write_study, repeats):
    return load_study(
        write_study(
            axes={"world_size": 2},
            layouts=[{"zero_stage": [0, 1, 2, 3]}],
            measure={"repeats": repeats},
        ),
        config,
    )


def test_who_may_be_the_best_runs_once_more_whatever_kind_its_step_is(
    config, write_study, tmp_path
):
    study = study_of(config, write_study, {"at_most": 2, "for": "contenders"})
    planned = fitting_plan(study)
    said = {0: {"step_time_s": 1.0}, 1: EXTENDED, 2: {"outcome": "oom"}, 3: {"step_time_s": 1.5}}
    for point in planned.points:
        if not point.repeat:
            changes = {"hosts": [f"n{point.layout.zero_stage}"], **said[point.layout.zero_stage]}
            write_rows(StudyPaths(tmp_path).row(point.point_id), [row_of(point, **changes)])
    out = StudyPaths(tmp_path).choice_of_repeat(2, 1)
    text = choose(study, planned, 2, tmp_path, out, repeat=1)
    assert text.startswith("world_size=2, repeat 1: 2 of 4 layouts are measured once more")
    stages = {p.point_id: p.layout.zero_stage for p in planned.points if p.repeat == 1}
    assert {stages[name] for name in chosen_ids(out)} == {0, 1}


def test_a_study_that_repeats_no_contenders_is_told_what_to_write(config, write_study, tmp_path):
    study = study_of(config, write_study, 2)
    planned = fitting_plan(study)
    with pytest.raises(InputError, match=r"repeats: \{at_most: 2, for: contenders\}"):
        choose(study, planned, 2, tmp_path, tmp_path / "out", repeat=1)
