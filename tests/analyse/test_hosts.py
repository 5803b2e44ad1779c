"""Hosts that are slower than the noise allows, by made-up runs, and by probes by hand."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from scaling.analyse.hosts import slow_in_probes, slow_in_runs
from scaling.record.probe_row import Probe


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


def probe(host, slowdown, **facts):
    nothing = dict.fromkeys(field.name for field in dataclasses.fields(Probe))
    usual = {
        "cluster": "c", "gpu": "h100-80gb", "gpus_per_node": 8, "kind": "gemm", "outcome": "ok",
        "precision": "bf16", "m": 1, "seconds": 1.0, "started_at": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    return Probe(**{**nothing, **usual, "host": host, "slowdown": slowdown, **facts})


def test_a_host_that_is_slow_at_most_sizes_is_named_with_its_median():
    rows = [probe("a", s, m=n) for n, s in enumerate((1.1, 1.3, 1.4))]
    rows += [probe("b", 1.0, m=n) for n in range(3)]
    (named,) = slow_in_probes(rows)
    assert (named.host, named.kind, named.slowdown, named.count) == ("a", "gemm", 1.3, 3)


def test_of_two_in_a_slow_pair_the_one_that_is_fast_with_another_is_well():
    def pair(one, other, slowdown):
        return probe(one, slowdown, kind="send_recv", peer_host=other)

    rows = [pair("a", "b", 1.0), pair("c", "d", 1.9), pair("b", "c", 1.8), pair("d", "a", 1.0)]
    assert [(one.host, one.slowdown) for one in slow_in_probes(rows)] == [("c", 1.8)]


def test_groups_of_hosts_farther_apart_are_probes_of_their_own():
    rows = [probe("a", s, kind="all_reduce", stride=n) for n, s in ((1, 1.0), (2, 1.9), (4, 1.9))]
    assert [(one.slowdown, one.count) for one in slow_in_probes(rows)] == [(1.9, 3)]


def test_without_peers_nobody_is_slow():
    assert slow_in_probes([probe("a", None)]) == []


def test_a_host_slow_in_one_precision_is_named():
    rows = [probe("a", 1.5, m=n) for n in range(3)]
    rows += [probe("a", 1.0, m=n, precision="fp8") for n in range(2)]
    (named,) = slow_in_probes(rows)
    assert (named.slowdown, named.count) == (1.5, 5)
