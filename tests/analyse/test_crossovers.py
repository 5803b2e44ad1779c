"""Where the order of layouts changes: found where it is known, and unresolved where it is not."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling.analyse.ties import NOISE_FLOOR, margin_of
from tests.analyse.conftest import run_sql


def placed(rates, *, noise):
    """Ranking rows of layouts a and b at these sizes; rates in tokens/s, noise a ratio."""
    rows = []
    for size, pair in rates.items():
        order = sorted(zip("ab", pair, strict=True), key=lambda one: -one[1])
        for position, (name, rate) in enumerate(order, start=1):
            rows.append(
                {
                    "setting_id": 1, "series": "measured", "world_size": size, "layout": name,
                    "layout_name": name.upper(), "position": position, "tokens_per_s": rate,
                    "tokens_per_s_low": rate * math.exp(-noise),
                    "tokens_per_s_high": rate * math.exp(noise), "margin": noise,
                }
            )  # fmt: skip
    return rows


COLOURS = [{"setting_id": 1, "layout": name, "slot": slot} for slot, name in enumerate("ab", 1)]


def crossing(rates, *, noise=0.001):
    return run_sql("crossovers", ranking=placed(rates, noise=noise), colours=COLOURS)


def test_a_symmetric_swap_crosses_in_the_middle_of_the_log_axis():
    (found,) = crossing({4: (110.0, 100.0), 16: (200.0, 220.0)})
    assert found["crossing"] == pytest.approx(8)
    assert (found["before_layout"], found["after_layout"]) == ("a", "b")
    assert found["of_fastest"] is True
    assert found["resolved"] is True
    assert 4 < found["crossing_low"] < 8 < found["crossing_high"] < 16


def test_overlapping_intervals_do_not_resolve_a_swap():
    (found,) = crossing({4: (110.0, 100.0), 16: (200.0, 220.0)}, noise=0.1)
    assert found["resolved"] is False
    assert (found["crossing_low"], found["crossing_high"]) == (pytest.approx(4), pytest.approx(16))


def test_a_lead_below_the_floor_resolves_no_swap_however_narrow_the_intervals():
    rows = placed({4: (101.0, 100.0), 16: (200.0, 220.0)}, noise=0.001)
    rows = [row | {"margin": margin_of(NOISE_FLOOR)} for row in rows]
    (found,) = run_sql("crossovers", ranking=rows, colours=COLOURS)
    assert found["resolved"] is False
    assert found["crossing_low"] == pytest.approx(4)


def test_layouts_that_keep_their_order_do_not_cross():
    assert crossing({4: (110.0, 100.0), 16: (220.0, 200.0)}) == []


def test_without_intervals_it_is_not_said_to_be_resolved():
    first, *others = placed({4: (110.0, 100.0), 16: (200.0, 220.0)}, noise=0.1)
    bare = [row | dict.fromkeys(("tokens_per_s_low", "tokens_per_s_high")) for row in others]
    (found,) = run_sql("crossovers", ranking=[first, *bare], colours=COLOURS)
    assert found["resolved"] is None


@settings(max_examples=25, deadline=None)
@given(st.floats(0.05, 0.95), st.floats(0.05, 0.5), st.floats(0.0001, 0.02))
def test_a_known_crossover_is_found_inside_its_interval(place, slope, noise):
    """Two straight lines on log axes that cross at a stated place between 8 and 64."""
    known = 8 * 8**place
    lead = {size: slope * math.log(known / size) for size in (8, 64)}
    (found,) = crossing({n: (1000.0 * math.exp(d), 1000.0) for n, d in lead.items()}, noise=noise)
    assert found["crossing"] == pytest.approx(known)
    assert found["crossing_low"] <= known * (1 + 1e-9)
    assert found["crossing_high"] >= known * (1 - 1e-9)


def switched(advised, *, crossovers):
    """The changes of advice a, ... at sizes; every layout ran everywhere but c, which ran on 1."""
    common = {"setting_id": 1, "series": "measured"}
    sizes = [size for size, _ in advised]
    rivals = [
        common | {"world_size": size, "layout": name, "tokens_per_s": rate, "margin": 0.01}
        for size in sizes
        for name, rate in (("a", 100.0), ("b", 110.0), ("c", 90.0))
        if name != "c" or size == 1
    ]
    return run_sql(
        "switches",
        advised=[common | {"world_size": size, "layout": name} for size, name in advised],
        rivals=rivals,
        colours=[
            {"setting_id": 1, "layout": name, "layout_name": name, "slot": slot}
            for slot, name in enumerate("abc", 1)
        ],
        best=[common | {"world_size": size, "drawn": True} for size in sizes],
        crossovers=crossovers,
    )


def test_a_switch_without_a_common_size_is_absent_and_spans_both():
    one = crossing({4: (110.0, 100.0), 16: (200.0, 220.0)})
    found = switched([(1, "c"), (4, "a"), (16, "b")], crossovers=one)
    assert [(row["from_world_size"], row["verdict"], row["gain"]) for row in found] == [
        (1, "absent", None),
        (4, "resolved", pytest.approx(1.1)),
    ]
    assert (found[0]["crossing"], found[0]["crossing_low"], found[0]["crossing_high"]) == (
        None,
        1,
        4,
    )
    assert found[1]["gain_low"] == pytest.approx(1.1 * math.exp(-0.01 * math.sqrt(2)))


def test_a_change_within_the_noise_of_runs_is_a_tie_however_narrow_the_intervals():
    narrow = crossing({4: (110.0, 100.0), 16: (100.0, 101.0)}, noise=0.001)
    assert narrow[0]["resolved"]
    common = {"setting_id": 1, "series": "measured"}
    floor = margin_of(NOISE_FLOOR)
    (found,) = run_sql(
        "switches",
        advised=[common | {"world_size": n, "layout": name} for n, name in ((4, "a"), (16, "b"))],
        rivals=[
            common | {"world_size": 16, "layout": name, "tokens_per_s": rate, "margin": floor}
            for name, rate in (("a", 100.0), ("b", 101.0))
        ],
        colours=[{**one, "layout_name": one["layout"]} for one in COLOURS],
        best=[common | {"world_size": size, "drawn": True} for size in (4, 16)],
        crossovers=narrow,
    )
    assert found["verdict"] == "tie"


def test_where_the_advice_keeps_its_layout_nothing_switches():
    one = crossing({4: (110.0, 100.0), 16: (200.0, 220.0)})
    assert switched([(4, "a"), (16, "a")], crossovers=one) == []
