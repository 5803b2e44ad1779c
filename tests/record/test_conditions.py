"""Conditions choose rows, or are refused; none reads a file."""

import pyarrow as pa
import pytest

from scaling.errors import InputError
from scaling.record.conditions import rows_where

TABLE = pa.table({"x": [1, 2, 3], "name": ["a", "b;c", "d"], "times": [[1.0, 2.0], [3.0], None]})


def chosen(condition):
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
        ("x > 1, x > 2", "only a single expression"),
        ("x > 1 order by x", "is not an expression list"),
        ("true from range(4)", "is not an expression list"),
        ("name = read_text('/etc/passwd')", "Binder Error"),
        ("x + 1", "gives BIGINT, where true or false is needed"),
        ("tp = 1", 'Referenced column "tp" not found .* The columns are x, name, times, row_index'),
        ("", "SELECT clause without selection list"),
    ],
)
def test_what_is_no_condition_over_the_columns_is_refused(condition, sentence):
    with pytest.raises(InputError, match=r"t\.csv: --where .*" + sentence):
        chosen(condition)


def test_a_random_choice_is_the_same_each_time():
    assert chosen("random() > 0.5") == chosen("random() > 0.5")
