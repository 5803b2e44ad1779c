"""Numbers as people read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.report.text import (
    GLUE,
    amount,
    duration,
    faster,
    gib,
    glued,
    money,
    percent,
    significant,
)

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


def test_ratios_and_bytes():
    assert percent(0.3951, 1) == f"39.5{THIN}%"
    assert percent(None) == "–"
    assert gib(2**29) == f"0.500{THIN}GiB"
    assert gib(None) == "–"


def test_halves_are_rounded_as_the_scripts_of_the_page_round_them():
    assert (percent(0.805), percent(0.985)) == (f"81{THIN}%", f"99{THIN}%")
    assert amount(112_500) == f"113{THIN}k"


@pytest.mark.parametrize(
    ("hours", "words"),
    [(67.2, "2.80 days"), (47.9, "47.9 hours"), (0.2, "12.0 minutes"), (1e-4, "0.360 seconds")],
)
def test_a_time_has_a_fitting_unit(hours, words):
    assert duration(hours) == words.replace(" ", GLUE)


def test_a_cost_is_in_dollars_or_without_a_price_in_hours():
    assert money(4560, 2.5, "GPU") == f"$11.4{THIN}k"
    assert money(4560, None, "rank") == f"4{THIN}560 rank-hours"


@pytest.mark.parametrize(
    ("ratio", "low", "high", "words"),
    [
        (1.64, 1.45, 1.7, "64 % faster (45–70 %, 95 % interval)"),
        (0.6, 0.5, 0.7, "40 % slower (30–50 %, 95 % interval)"),
        (2.3, 2.1, 2.5, "2.30 times as fast (2.1–2.5, 95 % interval)"),
        (1.001, 0.98, 1.02, "as fast (−2 to 2 %, 95 % interval)"),
    ],
)
def test_a_change_of_the_rate_is_said_with_its_interval(ratio, low, high, words):
    assert faster(ratio, low, high, 0.95).replace(THIN, " ") == words


def test_no_line_ends_between_a_word_and_its_number():
    assert glued("8 GPUs, ZeRO-3, mb 2") == f"8{GLUE}GPUs, ZeRO\u20113, mb{GLUE}2"


@given(st.floats(1e-6, 1e15))
def test_three_digits_are_never_off_by_more_than_they_hide(value):
    text = significant(value).replace(THIN, "")
    assert float(text) == pytest.approx(value, rel=0.0051)
