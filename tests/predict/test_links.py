"""Seconds of a ring, by hand and against the wire."""

import numpy as np
import pytest

from scaling.cluster.hardware import GPUS
from scaling.predict.cost.links import Ranks, link, ring_pass
from tests.predict.conftest import ideal_step

pytestmark = pytest.mark.usefixtures("no_overheads")

GB = 1e9


def ranks(nodes, here=8):
    nodes = np.atleast_1d(np.asarray(nodes, dtype=np.float64))
    return Ranks(nodes * here, nodes, 300 * GB, np.full(len(nodes), 200 * GB))


@pytest.mark.parametrize(
    ("message", "nodes", "here", "seconds"),
    [
        # 8 ranks: 7/8 x 1.2 GB / 300 GB/s and 7 hops of 3.4 us
        (1.2 * GB, 1, 8, 3.5e-3 + 23.8e-6),
        # 32 ranks on 4 nodes: 31/32 x 3.2 GB / 200 GB/s, 4 hops of 14 us and 28 of 3.4 us
        (3.2 * GB, 4, 8, 15.5e-3 + 56e-6 + 95.2e-6),
        (GB, 1, 1, 0),
    ],
)
def test_a_ring_sends_its_part_and_enters_each_node_once_a_pass(message, nodes, here, seconds):
    assert ring_pass(np.array([message]), ranks(nodes, here=here)) == pytest.approx(seconds)


def test_mesh_ranks_have_their_own_links_and_switch_ranks_all():
    mesh, switch = GPUS["mi300x-192gb"], GPUS["h100-80gb"]
    sizes = np.array([2.0, 4.0, 8.0])
    assert link(mesh, sizes) == pytest.approx([64 * GB, 3 * 64 * GB, 448 * GB])
    assert link(switch, sizes) == pytest.approx([450 * GB] * 3)
    assert link(mesh, 2) == pytest.approx(64 * GB)


def test_two_ranks_of_a_mesh_wait_seven_times_as_long_for_each_byte(points):
    for name, axes in (("dp_comm_s", {"dp": 2}), ("pp_comm_s", {"pp": 2})):
        mesh, switch = (
            ideal_step(points({**axes, "cluster": gpu, "gradient_accumulation_steps": 2}))
            for gpu in ("mi300x-192gb", "h100-80gb")
        )
        assert mesh.terms[name] / switch.terms[name] == pytest.approx(450 / 64, rel=0.01)


def test_a_tp_group_over_nodes_is_no_faster_than_inside_one(points):
    # L40S: 32 GB/s over PCIe, but 8 x 200 Gb/s out of a node
    row = {"cluster": "l40s-48gb", "attention": "flash2"}
    steps = ideal_step(points({**row, "tp": 8}, {**row, "tp": 16})).terms["tp_comm_s"]
    assert steps[1] > steps[0] * (15 / 16) / (7 / 8) * 0.999
