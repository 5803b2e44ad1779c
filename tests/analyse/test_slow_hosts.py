"""Which hosts probes call slow, by hand."""

import dataclasses

from scaling.analyse.slow_hosts import slow_hosts
from scaling.record.probe_row import Probe


def probe(host, slowdown, *, kind="gemm", size=1, peer_host=None, stride=None, precision="bf16"):
    nothing = dict.fromkeys(field.name for field in dataclasses.fields(Probe))
    return Probe(
        **{
            **nothing,
            "cluster": "c",
            "gpu": "h100-80gb",
            "gpus_per_node": 8,
            "kind": kind,
            "outcome": "ok",
            "precision": precision,
            "host": host,
            "peer_host": peer_host,
            "m": size,
            "stride": stride,
            "seconds": 1.0,
            "slowdown": slowdown,
            "started_at": "2026-01-01T00:00:00+00:00",
        }
    )


def test_a_host_that_is_slow_at_most_sizes_is_named_with_its_median():
    rows = [probe("a", s, size=n) for n, s in enumerate((1.1, 1.3, 1.4))]
    rows += [probe("b", 1.0, size=n) for n in range(3)]
    (named,) = slow_hosts(rows)
    assert (named.host, named.kind, named.slowdown, named.probes) == ("a", "gemm", 1.3, 3)


def test_of_two_in_a_slow_pair_the_one_that_is_fast_with_another_is_well():
    def pair(one, other, slowdown):
        return probe(one, slowdown, kind="send_recv", peer_host=other)

    rows = [pair("a", "b", 1.0), pair("c", "d", 1.9), pair("b", "c", 1.8), pair("d", "a", 1.0)]
    assert [(one.host, one.slowdown) for one in slow_hosts(rows)] == [("c", 1.8)]


def test_groups_of_hosts_farther_apart_are_probes_of_their_own():
    rows = [probe("a", s, kind="all_reduce", stride=n) for n, s in ((1, 1.0), (2, 1.9), (4, 1.9))]
    assert [(one.slowdown, one.probes) for one in slow_hosts(rows)] == [(1.9, 3)]


def test_without_peers_nobody_is_slow():
    assert slow_hosts([probe("a", None)]) == []


def test_a_host_slow_in_one_precision_is_named():
    rows = [probe("a", 1.5, size=n) for n in range(3)]
    rows += [probe("a", 1.0, size=n, precision="fp8") for n in range(2)]
    (named,) = slow_hosts(rows)
    assert (named.slowdown, named.probes) == (1.5, 5)
