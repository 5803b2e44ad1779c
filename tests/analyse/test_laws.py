"""The universal scalability law: parameters come back, and their intervals hold them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling.analyse.laws import law_of, usl

SIZES = np.array([1.0, 2, 4, 8, 16, 32, 64])


def curve(*, t1=1000.0, serial=0.03, coherency=0.0004):
    """Ln tokens/s of a law, (sizes, 1)."""
    time = 1 + serial * (SIZES - 1) + coherency * SIZES * (SIZES - 1)
    return np.log(t1 * SIZES / time)[:, None]


@settings(max_examples=30, deadline=None)
@given(st.floats(1.0, 1e6), st.floats(0.0, 0.3), st.floats(0.0, 0.01))
def test_noiseless_parameters_come_back(t1, serial, coherency):
    found = usl(SIZES, curve(t1=t1, serial=serial, coherency=coherency))
    assert found["t1"] == pytest.approx([t1], rel=1e-6)
    assert found["serial"] == pytest.approx([serial], abs=1e-7)
    assert found["coherency"] == pytest.approx([coherency], abs=1e-9)


def test_the_peak_is_where_the_curve_turns_and_unknown_where_it_never_does():
    found = usl(SIZES, curve(serial=0.02, coherency=0.0002))
    assert found["peak_world_size"] == pytest.approx([np.sqrt(0.98 / 0.0002)], rel=1e-6)
    law = law_of(SIZES, np.repeat(curve(coherency=0.0), 10, axis=1))
    assert law["peak_world_size"] is None
    assert law["fit_error"] == pytest.approx(0, abs=1e-9)


def test_intervals_hold_the_true_parameters_about_nineteen_times_in_twenty():
    """90 of 100 noisy curves at least: 95 expected, 2.2 its standard deviation."""
    random = np.random.default_rng(1)
    held = {"t1": 0, "serial": 0, "coherency": 0}
    for _ in range(100):
        seen = curve() + random.normal(0, 0.01, (len(SIZES), 1))
        error = random.normal(0, 0.01, (len(SIZES), 200))
        law = law_of(SIZES, np.concatenate([seen + error, seen - error], axis=1))
        for name, true in (("t1", 1000.0), ("serial", 0.03), ("coherency", 0.0004)):
            held[name] += law[f"{name}_low"] <= true <= law[f"{name}_high"]
    assert all(count >= 90 for count in held.values()), held
