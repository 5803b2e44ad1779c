"""No title names a winner that noise could have chosen."""

import math
import random

import pytest

from scaling.analyse.ties import NOISE_FLOOR, UNSTATED_FLOOR, margin_of
from scaling.report.sections import answer, findings, over_sizes
from scaling.report.sections.over_sizes import is_ahead, leaders
from scaling.report.tables import Tables


def test_a_lead_counts_above_the_interval_of_the_ratio_and_not_below():
    slow = {"tokens_per_s": 100.0, "margin": 0.03}
    fast = {"tokens_per_s": 100.0 * math.exp(0.051), "margin": 0.04}
    assert is_ahead(fast, slow)
    fast["tokens_per_s"] = 100.0 * math.exp(0.049)
    assert not is_ahead(fast, slow)


def test_a_row_that_says_nothing_of_its_noise_has_the_unstated_floor():
    slow = {"tokens_per_s": 1.0}
    assert is_ahead({"tokens_per_s": 1.01 + UNSTATED_FLOOR}, slow)
    assert not is_ahead({"tokens_per_s": 0.99 + UNSTATED_FLOOR}, slow)
    assert math.expm1(math.hypot(*[margin_of(NOISE_FLOOR)] * 2)) == pytest.approx(NOISE_FLOOR)


def test_leaders_are_the_fastest_and_those_not_told_apart_from_it():
    rows = [{"tokens_per_s": rate, "margin": 0.02} for rate in (90.0, 99.0, 100.0)]
    assert leaders(rows) == [rows[2], rows[1]]


def tables(lead):
    """Two sizes, the second faster by `lead`, a ratio."""
    pair = (100.0, 100.0 * (1 + lead))
    noise = margin_of(NOISE_FLOOR)
    common = {"series": "measured", "margin": noise, "status": "ok", "world_size": 8}
    return Tables(
        {
            "best": [
                common | {"world_size": size, "tokens_per_s": rate}
                for size, rate in zip((8, 16), pair, strict=True)
            ],
        }
    )


def shaken(given, seed):
    draw = random.Random(seed)
    return Tables(
        {
            name: [
                row | {k: row[k] * draw.uniform(0.995, 1.005) for k in row if "tokens" in k}
                for row in rows
            ]
            for name, rows in given.records.items()
        }
    )


@pytest.mark.parametrize("lead", [0.0015, 0.004, 0.008])
def test_a_lead_within_noise_is_claimed_by_no_title_however_the_rates_fall(lead):
    for seed in range(20):
        given = shaken(tables(lead), seed)
        assert "does not change beyond the noise" in over_sizes.throughput_title(given)


def test_a_clear_lead_is_claimed_however_the_rates_fall():
    for seed in range(20):
        given = shaken(tables(0.3), seed)
        assert "throughput grows 1.3×" in over_sizes.throughput_title(given)


def effect(name, ratio, low, high, pairs=9, *, factor="tp", against="none"):
    return {
        "series": "measured", "factor": factor, "name": f"{name}, against {against}",
        "near_pairs": pairs, "near_ratio": ratio, "near_low": low, "near_high": high,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("effects", "title"),
    [
        ([], "No two layouts near the fastest differ in one choice only"),
        ([effect("a", 1.2, None, None, 2)], "Too few layouts near the fastest differ in one "
         "choice only to rank the choices"),
        ([effect("a", 1.2, 0.9, 1.5)], "Near the fastest layouts no choice is told apart from "
         "its alternative"),
        ([effect("a", 1.01, 1.005, 1.015)], "Near the fastest layouts no choice is told apart "
         "from its alternative"),
        ([effect("a", 1.3, 1.25, 1.35), effect("b", 0.9, 0.85, 0.95)],
         "Near the fastest layouts a (against none) is worth most: ×1.30 [1.25–1.35] over 9 pairs"),
        ([effect("a", 1.3, 1.25, 1.35), effect("b", 1.6, 0.9, 2.8)],
         "Near the fastest layouts a (against none) is worth most of the choices told apart from "
         "their alternatives: ×1.30 [1.25–1.35] over 9 pairs"),
        ([effect("a", 1.3, 1.2, 1.4), effect("b", 0.8, 0.75, 0.9)],
         "Near the fastest layouts a (against none) and none (against b) are worth most "
         "and not told apart"),
        ([effect("tp 2", 0.8, 0.75, 0.9, against=1)],
         "Near the fastest layouts tp 1 (against 2) is worth most: ×1.25 [1.11–1.33] over 9 pairs"),
        ([effect("checkpointing full", 0.8, 0.75, 0.9, factor="checkpointing")],
         "Near the fastest layouts no checkpointing (against full) is worth most: ×1.25 "
         "[1.11–1.33] over 9 pairs"),
    ],
)  # fmt: skip
def test_the_choice_worth_most_stands_on_pairs_near_the_fastest_and_apart_from_others(
    effects, title
):
    assert findings.effects_title(Tables({"effects": effects})) == title


def ran(size, *, low=None, high=None, runs=1, runner_up="b", stack="s", other="s"):
    """The fastest of a size, and its contender's row."""
    noise = {"tokens_per_s_low": low, "tokens_per_s_high": high}
    best = {
        "world_size": size, "tied": False, "runner_up_layout_name": runner_up,
        "stack_fingerprint": stack, "runner_up_stack_fingerprint": other,
    } | noise  # fmt: skip
    told = {"outcome": "ok", "layout_name": "a", "ok_runs": runs, "mfu": None, "world_size": size}
    return best, told | noise


def note(*rows):
    best, contenders = zip(*rows, strict=True)
    given = Tables(
        {
            "best": list(best), "contenders": list(contenders), "returns": [], "outcomes": [],
            "settings": [{"vendor": "nvidia"}], "noise": [], "progress": [{"waiting": 0}],
        }
    )  # fmt: skip
    return answer.note(given)


KNOWN = "A lead below 2\u202f% counts as a tie between runs, however narrow their intervals"


def test_the_tie_rule_is_that_of_the_rows_and_is_not_said_where_nothing_is_compared():
    unknown = "below 5\u202f% counts as a tie between rows that state no noise"
    assert note(ran(8, low=1.0, high=1.1)) == f"{KNOWN}."
    assert note(ran(8, runs=3)) == f"{KNOWN}."
    assert note(ran(8)) == f"A lead {unknown}."
    assert note(ran(8), ran(16, low=1.0, high=1.1)) == f"{KNOWN}, one {unknown}."
    without = "At no size did two layouts run, so the fastest is compared with none."
    assert note(ran(8, runner_up=None), ran(16, runner_up=None)) == without


def test_an_order_between_two_software_stacks_is_said_to_be_one():
    assert note(ran(8, runs=3, other="t"), ran(16, runs=3)) == (
        f"{KNOWN}. At 8 GPUs the two fastest layouts ran in different software, so their order "
        "compares software too."
    )
