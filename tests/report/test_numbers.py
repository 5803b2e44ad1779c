"""Numbers as people read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.report.text import amount, gib, interval, listed, percent, significant, times

THIN = "\u202f"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (0, "0"), (9.994, "9.99"), (791.2, "791"), (6555.4, "6 555"),
        (12_345, "12.3 k"), (420_123, "420 k"), (1_750_000, "1.75 M"), (5.01e9, "5.01 G"),
        (9.896e14, "990 T"), (-12_345, "−12.3 k"),
    ],
)  # fmt: skip
def test_amounts(value, text):
    assert amount(value) == text.replace(" ", THIN)


def test_an_amount_with_a_unit_has_its_prefix_before_it():
    assert amount(5.01e9, "FLOP/s") == f"5.01{THIN}GFLOP/s"
    assert amount(12.0, "W") == f"12.0{THIN}W"


def test_ratios_factors_and_bytes():
    assert percent(0.3951, 1) == f"39.5{THIN}%"
    assert percent(None) == "–"
    assert (times(6.34), times(16.2)) == ("6.3×", "16×")
    assert (times(2048 / 8), times(1536 / 8)) == ("256×", "192×")  # whole ones are not rounded
    assert gib(2**29) == f"0.500{THIN}GiB"
    assert gib(None) == "–"


def test_halves_are_rounded_as_the_scripts_of_the_page_round_them():
    assert (percent(0.805), percent(0.985)) == (f"81{THIN}%", f"99{THIN}%")
    assert (amount(112_500), interval(-0.625, None, None)) == (f"113{THIN}k", "−0.63")


def test_intervals_keep_their_signs_readable():
    assert interval(0.79, 0.77, 0.81) == "0.79 [0.77–0.81]"
    assert interval(-0.08, -0.09, -0.06) == "−0.08 [−0.09 to −0.06]"
    assert interval(0.79, None, None) == "0.79"


def test_lists_read_like_a_sentence():
    assert [listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])] == [
        "a",
        "a and b",
        "a, b and c",
    ]


@given(st.floats(1e-6, 1e15))
def test_three_digits_are_never_off_by_more_than_they_hide(value):
    text = significant(value).replace(THIN, "")
    assert float(text) == pytest.approx(value, rel=0.0051)


def test_a_factor_near_one_does_not_read_as_no_change():
    assert (times(1.04), times(1.021), times(0.97), times(1)) == ("1.04×", "1.02×", "0.97×", "1×")
