"""Scaling laws: parameters recovered, held-out error decides, bands hold what they should."""

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling.analyse import laws
from scaling.analyse.laws import (
    LEAST_SIZES,
    REACH,
    fit,
    fitted_laws,
    held_out_errors,
    law_curves,
    refits,
)
from scaling.analyse.ties import Z80, Z95

SIZES = np.array([1.0, 2, 4, 8, 16, 32, 64])


def usl(n, *, t1=1000.0, serial=0.03, coherency=0.0004):
    return t1 * n / (1 + serial * (n - 1) + coherency * n * (n - 1))


@settings(max_examples=30, deadline=None)
@given(st.floats(1.0, 1e6), st.floats(0.0, 0.3), st.floats(0.0, 0.01))
def test_noiseless_parameters_come_back(t1, serial, coherency):
    found = fit("usl", SIZES, usl(SIZES, t1=t1, serial=serial, coherency=coherency))[0].parameters()
    assert found["t1"] == pytest.approx(t1, rel=1e-6)
    assert found["serial"] == pytest.approx(serial, abs=1e-7)
    assert found["coherency"] == pytest.approx(coherency, abs=1e-9)


def test_the_peak_of_a_usl_is_where_its_curve_turns():
    (law,) = fit("usl", SIZES, usl(SIZES, serial=0.02, coherency=0.0002))
    assert law.peak_world_size() == pytest.approx(np.sqrt(0.98 / 0.0002), rel=1e-6)
    assert fit("amdahl", SIZES, usl(SIZES, coherency=0.0))[0].peak_world_size() is None


def test_intervals_hold_the_true_parameter_about_nineteen_times_in_twenty():
    """90 of 100 noisy curves at least: 95 expected, 2.2 its standard deviation."""
    random = np.random.default_rng(1)
    held = {"serial": 0, "coherency": 0}
    for _ in range(100):
        rates = usl(SIZES) * np.exp(random.normal(size=len(SIZES)) * 0.01)
        (law,) = fit("usl", SIZES, rates)
        drawn = [one.parameters() for one in refits(law, SIZES, rates, np.full(len(SIZES), 0.01))]
        for name, true in (("serial", 0.03), ("coherency", 0.0004)):
            low, high = np.quantile([one[name] for one in drawn], [0.025, 0.975])
            held[name] += low <= true <= high
    assert min(held.values()) >= 90


def test_held_out_errors_see_only_smaller_sizes():
    rates = usl(SIZES)
    rates[-1] *= 2
    errors = held_out_errors("usl", SIZES, rates)
    assert len(errors) == len(SIZES) - LEAST_SIZES + 1
    assert errors[:-1] == pytest.approx(np.zeros(len(errors) - 1), abs=1e-6)
    assert errors[-1] == pytest.approx(0.5, abs=1e-3)


def tables(rates, sizes=SIZES, *, series="measured"):
    connection = duckdb.connect()
    best = [
        {"setting_id": 1, "series": series, "world_size": int(n), "tokens_per_s": float(t),
         "margin": 0.01, "drawn": True}
        for n, t in zip(sizes, rates, strict=True)
    ]  # fmt: skip
    connection.register("best", pa.Table.from_pylist(best))
    return connection


def test_the_law_that_made_the_curve_is_chosen_and_drawn_beyond_it():
    connection = tables(usl(SIZES, coherency=0.002))
    found = fitted_laws(connection)
    assert [row["law"] for row in found.to_pylist() if row["chosen"]] == ["usl"]
    connection.register("laws", found)
    curve = law_curves(connection).to_pylist()
    assert curve[-1]["world_size"] == pytest.approx(REACH * 64)
    assert [row["inside_data"] for row in curve if row["world_size"] == 64] == [True]
    assert not curve[-1]["inside_data"]
    for row in curve:
        assert row["tokens_per_s_low"] <= row["tokens_per_s"] * (1 + 1e-9)
        assert row["tokens_per_s"] <= row["tokens_per_s_high"] * (1 + 1e-9)
    wide = [row["tokens_per_s_high"] / row["tokens_per_s_low"] for row in curve]
    assert wide[-1] > max(wide[:20])


def test_of_laws_that_err_alike_the_simplest_is_chosen():
    found = fitted_laws(tables(usl(SIZES, coherency=0.0))).to_pylist()
    assert [row["law"] for row in found if row["chosen"]] == ["amdahl"]


def test_three_sizes_carry_no_law():
    assert fitted_laws(tables(usl(SIZES[:3]), SIZES[:3])).num_rows == 0


def test_an_interval_of_80_per_cent_makes_a_wider_band_than_the_same_of_95():
    def width(series):
        (law,) = [
            row
            for row in fitted_laws(tables(usl(SIZES), series=series)).to_pylist()
            if row["law"] == "usl"
        ]
        return law["serial_high"] - law["serial_low"]

    assert width("extended") / width("measured") == pytest.approx(Z95 / Z80, rel=0.05)


def test_the_band_holds_whichever_law_is_true_though_few_sizes_choose_another():
    random = np.random.default_rng(2)
    sizes = np.array([8.0, 16, 32, 64])

    def usl(n):
        return 1000 * n / (1 + 0.003 * (n - 1) + 3e-5 * n * (n - 1))

    rows = [
        {
            "setting_id": number, "series": "measured", "world_size": int(size),
            "tokens_per_s": rate, "margin": 0.014, "drawn": True,
        }
        for number in range(20)
        for size, rate in zip(sizes, usl(sizes) * np.exp(random.normal(0, 0.007, 4)), strict=True)
    ]  # fmt: skip
    with duckdb.connect() as connection:
        connection.register("best", pa.Table.from_pylist(rows))
        connection.register("laws", laws.fitted_laws(connection))
        curves = laws.law_curves(connection).to_pylist()
    at_most = [row for row in curves if row["world_size"] > 500]
    held = [
        row["tokens_per_s_low"] <= usl(row["world_size"]) <= row["tokens_per_s_high"]
        for row in at_most
    ]
    assert len(held) == 20
    assert sum(held) >= 18
