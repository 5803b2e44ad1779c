"""Hosts that are slower than the noise allows, found in runs that were made up."""

import numpy as np
import pyarrow as pa
import pytest

from scaling.analyse.hosts import slow_in_runs


def made(random, *, layouts=12, repeats=3, nodes=6, slow=(), noise=0.01, each=1):
    """Runs of layouts, each on `each` nodes of several; `slow`: names and what they lose."""
    rates, groups, hosts = [], [], []
    for layout in range(layouts):
        for _ in range(repeats):
            on = [f"node-{n}" for n in random.choice(nodes, each, replace=False)]
            lost = max([0.0, *(loss for name, loss in slow if name in on)])
            rates.append(layout + random.normal(0, noise) - lost)
            groups.append(layout)
            hosts.append(on)
    return np.array(rates), np.array(groups), pa.array(hosts)


@pytest.mark.parametrize("each", [1, 2])
def test_a_slow_node_is_named_with_what_it_loses(each):
    random = np.random.default_rng(1)
    found = [
        slow_in_runs(*made(random, slow=[("node-2", 0.08)], each=each, nodes=4 * each))
        for _ in range(30)
    ]
    named = [one for one in found if [host.host for host in one] == ["node-2"]]
    assert len(named) >= 27
    effects = [one[0].effect for one in named]
    assert np.mean(effects) == pytest.approx(-0.08, abs=0.01)


def test_among_equal_nodes_hardly_one_is_named():
    random = np.random.default_rng(2)
    assert sum(bool(slow_in_runs(*made(random))) for _ in range(100)) <= 4


def test_a_node_that_shares_runs_with_a_slow_one_is_not_blamed():
    random = np.random.default_rng(3)
    slow = [("node-0", 0.1)]
    found = [slow_in_runs(*made(random, layouts=30, slow=slow, each=2)) for _ in range(10)]
    assert all([one.host for one in hosts] == ["node-0"] for hosts in found)


def test_two_slow_nodes_are_both_named_the_slower_one_first():
    random = np.random.default_rng(4)
    slow = [("node-1", 0.06), ("node-4", 0.15)]
    found = slow_in_runs(*made(random, layouts=40, slow=slow))
    assert [one.host for one in found] == ["node-4", "node-1"]


@pytest.mark.parametrize("hosts", [[["a"]] * 6, [["a"], ["b"]] * 3, [None] * 6])
def test_nothing_is_said_of_what_cannot_be_compared(hosts):
    groups = np.arange(6)  # no group has two runs
    column = pa.array(hosts, pa.list_(pa.string()))
    assert slow_in_runs(np.linspace(0, 1, 6), groups, column) == []
