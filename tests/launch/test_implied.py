"""One lack of memory rules out the same layout with a larger micro-batch."""

import dataclasses

import pytest

from scaling import __version__
from scaling.launch import measure
from scaling.launch.make_row import implied_row
from scaling.record.files import write_rows
from scaling.study.point import DIGEST, point_id
from tests.points import tiny_point
from tests.rows import row_of


def sized(micro_batch_size, **more):
    point = tiny_point(
        micro_batch_size=micro_batch_size,
        gradient_accumulation_steps=8 // micro_batch_size,
        **more,
    )
    readable = f"{point.model}-{point.layout.file_name}"
    return dataclasses.replace(point, point_id=point_id(readable, point, DIGEST))


@pytest.fixture
def ended(study):
    """Leave the row of a point that ended so."""

    def leave(point, outcome, **changes):
        here = {"torch_version": None, "scaling_version": __version__}
        row = row_of(point, outcome=outcome, **here | changes)
        write_rows(study.rows / f"{point.point_id}.parquet", [row])

    return leave


def never_started(launch):
    raise AssertionError("the point was started")


def test_a_larger_micro_batch_is_not_started_and_says_why(study, ended):
    small, large = sized(2), sized(4)
    ended(small, "oom")
    row = measure(study.write(large), study.row_path, start=never_started)
    assert (row.outcome, row.implied_by) == ("oom", small.point_id)
    assert row.error_message == "implied: micro_batch_size=2 ran out of memory"
    assert row.step_times_s is None


@pytest.mark.parametrize(
    ("twin", "outcome", "changes"),
    [
        (sized(2), "error", {}),
        (sized(8), "oom", {}),  # a larger one says nothing
        (sized(2, zero_stage=1), "oom", {}),
        (sized(2), "oom", {"torch_version": "1.0"}),
        (sized(2), "oom", {"cluster": "elsewhere"}),
    ],
)
def test_nothing_else_rules_a_point_out(study, ended, twin, outcome, changes):
    ended(twin, outcome, **changes)
    assert implied_row(sized(4), 1, study.rows) is None


def test_it_is_started_all_the_same_if_asked(study, ended):
    ended(sized(2), "oom")
    with pytest.raises(AssertionError, match="was started"):
        measure(study.write(sized(4)), study.row_path, start=never_started, implied=False)
