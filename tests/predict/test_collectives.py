import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.predict.cost.collectives import (
    Ranks,
    all_reduce,
    hierarchical_all_reduce,
    ring_all_reduce,
    ring_pass,
    tree_all_reduce,
)
from tests.predict.test_memory_arithmetic import UNHURRIED

GB = 1e9


def ranks(nodes, here=8, link=300 * GB, network=200 * GB):
    nodes = np.atleast_1d(np.asarray(nodes, dtype=np.float64))
    return Ranks(nodes * here, nodes, link, np.full(len(nodes), float(network)))


def test_a_ring_inside_a_node_sends_its_part_twice_over_nvlink():
    # 8 ranks, 1.2 GB: 2 x 7/8 x 1.2 GB / 300 GB/s and 2 x 7 hops of 3.4 us
    seconds = ring_all_reduce(np.array([1.2 * GB]), ranks(1))
    assert seconds == pytest.approx(7e-3 + 47.6e-6)


def test_a_ring_over_nodes_enters_each_node_once_a_pass():
    # 32 ranks on 4 nodes: 31/32 x 3.2 GB / 200 GB/s, 4 hops of 14 us and 28 of 3.4 us
    seconds = ring_pass(np.array([3.2 * GB]), ranks(4))
    assert seconds == pytest.approx(15.5e-3 + 56e-6 + 95.2e-6)


def test_a_tree_sends_every_byte_up_and_down_and_waits_for_its_depth():
    # 128 nodes: 2 x 0.92 GB / (0.92 x 200 GB/s), 2 x (7 hops of 4 us and 7 of 14 us)
    seconds = tree_all_reduce(np.array([0.92 * GB]), ranks(128))
    assert seconds == pytest.approx(10e-3 + 252e-6)


def test_a_hierarchy_reduces_inside_then_over_nodes_then_gathers():
    # 8 nodes, 2.4 GB: 2 x 7/8 of it over NVLink, 2 x 7/8 over the NICs, 14 and 16 hops
    message = np.array([2.4 * GB])
    seconds = hierarchical_all_reduce(message, ranks(8))
    ring = 2 * 7 / 8 * 2.4 / 200 + 16 * 14e-6
    tree = 2 * 2.4 / (0.92 * 200) + 2 * 3 * 14e-6
    assert seconds == pytest.approx(2 * 7 / 8 * 2.4 / 300 + 14 * 3.4e-6 + min(ring, tree))


def test_large_messages_on_few_nodes_take_the_ring_and_small_ones_on_many_the_tree():
    message, group = np.array([GB, 1e6]), ranks([4, 128])
    chosen = all_reduce(message, group, in_switch=False)
    ring, tree = ring_all_reduce(message, group), tree_all_reduce(message, group)
    assert chosen.tolist() == [ring[0], tree[1]]
    assert ring[0] < tree[0]
    assert tree[1] < ring[1] / 5


def test_a_hierarchy_is_only_taken_where_the_switch_reduces():
    # few bytes over NVLink far faster than the NICs: two nodes' ring would be 15 hops long
    message, group = np.array([1e5]), ranks(2, link=900 * GB)
    without, with_it = (all_reduce(message, group, in_switch=s) for s in (False, True))
    hierarchy = hierarchical_all_reduce(message, group)
    assert with_it == min(hierarchy, without)
    assert without == min(ring_all_reduce(message, group), tree_all_reduce(message, group))
    assert hierarchy < without


def test_one_rank_alone_has_nothing_to_reduce():
    assert all_reduce(np.array([GB]), ranks(1, here=1), in_switch=True) == 0


@UNHURRIED
@given(st.floats(1.0, 1e11), st.integers(1, 256), st.sampled_from([1, 2, 4, 8]), st.booleans())
def test_no_algorithm_beats_the_wire_and_more_bytes_never_cost_less(message, nodes, here, switch):
    group = ranks(nodes, here=here)
    one, two = (
        float(all_reduce(np.array([size]), group, in_switch=switch)[0])
        for size in (message, 2 * message)
    )
    size = nodes * here
    wire = 2 * (size - 1) / size * message / (300 * GB)
    assert wire <= one * (1 + 1e-12)
    assert one <= two
