"""Conditions choose rows, or are refused; none reads a file, takes the machine or changes."""

import resource

import pyarrow as pa
import pytest

from scaling.errors import InputError
from scaling.record.conditions import rows_where

pytestmark = pytest.mark.slow

TABLE = pa.table({"x": [1, 2, 3], "name": ["a", "b;c", "d"], "times": [[1.0, 2.0], [3.0], None]})


def chosen(condition: str | None) -> list[bool]:
    return rows_where(TABLE, condition, "t.csv", "--where").tolist()


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        (None, [True, True, True]),
        ("x > 1", [False, True, True]),
        ("row_index = 0", [True, False, False]),
        ("name = 'b;c'", [False, True, False]),
        ("list_sum(times) > 2 and x between 1 and 2", [True, True, False]),
    ],
)
def test_a_condition_chooses_the_rows_where_it_holds(condition, rows):
    assert chosen(condition) == rows


@pytest.mark.parametrize(
    ("condition", "sentence"),
    [
        ("x > 1;", "must be one condition"),
        ("x > 1 order by x", "must be one condition"),
        ("true from range(4)", "must be one condition"),
        ("x > 1 as y", "names something"),
        ("random() > 0.5", "random is not the same in each call"),
        ("x > 1 and now() > '2020-01-01'", "now is not the same in each call"),
        ("current_timestamp > '2020-01-01'", "current_timestamp is not the same in each call"),
        ("exists(select 1)", "must not select again"),
        ("name = read_text('/etc/passwd')", "Binder Error"),
        ("x + 1", "gives BIGINT, where true or false is needed"),
        ("tp = 1", 'Referenced column "tp" not found .* The columns are x, name, times, row_index'),
        ("", "SELECT clause without selection list"),
    ],
)
def test_what_is_no_lasting_condition_over_the_columns_is_refused(condition, sentence):
    with pytest.raises(InputError, match=r"t\.csv: --where .*" + sentence):
        chosen(condition)


@pytest.mark.parametrize(
    "condition",
    [
        "list_sum(range(300000000)) > x",
        "list_sum(list_transform(range(10000000), lambda i: i % 7 + sqrt(i) + ln(i + 1))) > x",
    ],
)
def test_a_condition_that_takes_too_much_is_killed_in_seconds(condition):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with pytest.raises(InputError, match=r"(?i)memory"):
        chosen(condition)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 30
