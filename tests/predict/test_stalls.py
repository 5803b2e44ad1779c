"""Odds that a pipeline over EFA stalls are learned from timed rows."""

import numpy as np
import pytest

from scaling.predict.cost.memory import memory_of
from scaling.predict.cost.risk import STALL_S, stalls_of
from scaling.predict.cost.step import step_of
from scaling.predict.fit.fitting import fit_stalls
from scaling.predict.read.parameters import STALL_ODDS
from tests.predict.conftest import checked

ROWS = [
    {"pp": 4, "tp": tp, "dp": 2 * nodes // tp, "zero_stage": 1, "cluster": "h100-80gb-efa",
     "micro_batch_size": micro, "gradient_accumulation_steps": 32}
    for nodes in (2, 4, 8) for tp in (1, 2) for micro in (1, 2)
]  # fmt: skip
MICRO_BATCHES = 32


@pytest.fixture
def pipelines():
    """Twelve pipelines over two, four and eight nodes, and their steps without a stall."""
    (group,) = checked(*ROWS).groups
    f, p = group.features, group.start
    used = memory_of(group, f, p).total / group.capacity_bytes
    quiet_s = step_of(group, f, p, used).total - stalls_of(group, f, p).expected_s
    assert (used < 0.9).all()
    return group, f, p, used, quiet_s


def chances(group, f, p, found):
    return stalls_of(group, f, {**p, **found}).chance


def test_pipelines_that_stalled_are_expected_to_stall_again(pipelines):
    group, f, p, used, quiet_s = pipelines
    wide = f.world_size == 64
    measured_s = quiet_s + np.where(wide, STALL_S * MICRO_BATCHES, 0.0)
    found = fit_stalls(group, f, measured_s, p, used)
    before, after = (chances(group, f, p, odds) for odds in ({}, found))
    assert set(found) == set(STALL_ODDS)
    assert (after[wide] > 2 * before[wide]).all()
    assert after[wide].min() > 2 * after[~wide].max()


def test_quiet_pipelines_lower_the_odds(pipelines):
    group, f, p, used, quiet_s = pipelines
    found = fit_stalls(group, f, quiet_s, p, used)
    assert (chances(group, f, p, found) < chances(group, f, p, {})).all()


def test_slow_steps_of_nearly_full_memory_tell_nothing(pipelines):
    group, f, p, used, quiet_s = pipelines
    assert fit_stalls(group, f, quiet_s + STALL_S * MICRO_BATCHES, p, np.ones_like(used)) == {}


def test_no_odds_are_learned_over_infiniband():
    (group,) = checked(*({**row, "cluster": "h100-80gb-dgx"} for row in ROWS)).groups
    f = group.features
    assert fit_stalls(group, f, np.full(len(f), 100.0), group.start, np.zeros(len(f))) == {}
