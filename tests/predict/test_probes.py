"""A cluster's rates from probes, on seconds of rates that are known."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from scaling.cluster.hardware import Cluster
from scaling.predict.cost.compute import offloaded_seconds
from scaling.predict.fit.calibrate import calibrate
from scaling.predict.fit.probes import probed_parameters
from scaling.predict.read.observed import observed_of
from scaling.predict.read.points import points_of
from scaling.record.files import arrow_schema
from scaling.record.probe_row import Probe
from tests.predict.conftest import as_table, table_of


def told_by(*rows, clusters=None):
    """The parameters of the rows' one cluster."""
    table = pa.Table.from_pylist([{"cluster": "a100-80gb-dgx", **row} for row in rows])
    lacking = {field.name for field in dataclasses.fields(Probe)} - {*table.column_names}
    for name in sorted(lacking):
        table = table.append_column(name, pa.nulls(table.num_rows))
    (told,) = probed_parameters(as_table(table, "probes.parquet"), clusters).values()
    return told


def gemms(**more):
    # 70 % of 312 TFLOP/s for a large one, every dimension at half of that at 100 elements
    return [
        {"kind": "gemm", "m": 2**k, "n": 2**k, "k": 2**k,
         "seconds": 2 * (2**k + 100) ** 3 / (0.7 * 312e12), **more}
        for k in range(8, 14)
    ]  # fmt: skip


def all_reduce(gb_per_s, ranks=8, nodes=1, **more):
    seconds = 2 * (ranks - 1) / ranks * 2**30 / (gb_per_s * 1e9)
    sent = {"kind": "all_reduce", "ranks": ranks, "nodes": nodes, "message_bytes": 2**30}
    return {**sent, "seconds": seconds, **more}


def attention(cluster, whole):
    row = {"kind": "attention", "attention": "flash2", "precision": "bf16", "seconds": 1.0}
    return [{**row, "cluster": cluster, "flop_per_s": s * whole} for s in (0.1, 0.5, 0.5)]


SLOW = [{**one, "precision": "fp32", "seconds": 2 * one["seconds"] * 312 / 19.5} for one in gemms()]
RACK = {"cluster": "rack", "groups": 1, "stride": 1}  # of hosts that GPU links join
HOSTS = {"rack": Cluster(
    gpu="gb200-186gb", gpus_per_node=4, nodes=36, node_link_bytes_per_s=200e9, source="test"
)}  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (gemms(), {"gemm_efficiency": 0.7, "gemm_half_size": 100}),
        # fp32 at half the efficiency: the mean of the logarithms lies between
        ([*gemms(precision="bf16"), *SLOW], {"gemm_efficiency": 0.7 / 2**0.5}),
        # two GPUs of a mesh are held against the link between them
        ([all_reduce(48, 2, cluster="mi300x-192gb")], {"link_efficiency": 48 / 64}),
        # 240 GB/s on links of 300, 120 GB/s on nodes of 200
        ([all_reduce(240), all_reduce(120, 16, 2)],
            {"link_efficiency": 0.8, "network_efficiency": 0.6}),
        # each of 8 pairs over two nodes moves 15 GB/s; alone it cannot fill the node's links
        ([all_reduce(15, 2, 2, groups=8)], {"network_efficiency": 8 * 15 / 200}),
        ([all_reduce(15, 2, 2, groups=1)], {}),
        ([all_reduce(720, 2, 2, **RACK | {"stride": 4, "groups": 4}),
            all_reduce(720, 72, 18, **RACK),
            all_reduce(25, 2, 2, **RACK | {"stride": 72, "groups": 72})],
            {"link_efficiency": 0.8, "network_efficiency": 0.5}),
        (attention("a100-80gb-dgx", 312e12), {"flash2_efficiency": 0.5}),
        # 0.7: made before Hopper
        (attention("h100-80gb-dgx", 0.7 * 781.6e12), {"flash2_efficiency": 0.5}),
        # an impossible probe stays inside physical bounds
        ([all_reduce(1e6)], {"link_efficiency": 0.95}),
    ],
)  # fmt: skip
def test_seconds_tell_the_rates_of_a_cluster(rows, told):
    found = told_by(*rows, clusters=HOSTS if rows[0].get("cluster") == "rack" else None)
    rough = {"gemm_efficiency": 0.02, "gemm_half_size": 0.06, "flash2_efficiency": 1e-3}
    assert {name: found[name] for name in told} == {
        name: pytest.approx(value, rel=rough.get(name)) for name, value in told.items()
    }
    assert found.keys() - told.keys() <= {"gemm_half_size"}


def test_the_table_a_probe_leaves_is_read_as_it_is():
    nothing = dict.fromkeys(field.name for field in dataclasses.fields(Probe))
    row = {**nothing, "cluster": "a100-80gb-dgx", "gpu": "a100-80gb", "gpus_per_node": 8}
    row |= {"precision": "bf16", "started_at": "2026-01-01T00:00:00+00:00"}
    measured = Probe(**{**row, "outcome": "ok", **all_reduce(240), "groups": 1})
    failed = Probe(**{**row, "kind": "gemm", "outcome": "oom", "error_message": "no room"})
    records = [dataclasses.asdict(one) for one in (measured, failed)]
    table = pa.Table.from_pylist(records, schema=arrow_schema(Probe))
    (told,) = probed_parameters(as_table(table, "probes.parquet")).values()
    assert told == {"link_efficiency": pytest.approx(0.8)}


def test_what_probes_tell_stays_where_rows_say_nothing():
    columns = as_table(table_of({"dp": 8, "step_time_s": 1.0, "tp": 1}), "rows")
    told = {"a100-80gb-dgx": {"network_efficiency": 0.77}}
    found = calibrate(points_of(columns), observed_of(columns), source="rows", probes=told)
    (stack,) = found.stacks.values()
    assert stack.values["network_efficiency"] == pytest.approx(0.77)


def test_an_update_on_the_host_tells_its_rate_while_all_ranks_share_it():
    row = {"kind": "host_update", "seconds": 0.1, "message_bytes": 2**28}
    for per_node, usual in ((1, 30e9), (8, 150e9 / 8)):
        told = told_by({**row, "gpus_per_node": per_node, "copy_bytes_per_s": 0.5 * usual})
        assert told == {"host_update": pytest.approx(0.5)}


def test_half_the_probed_rate_doubles_the_update_but_not_its_copies():
    (group,) = points_of(as_table(table_of({"dp": 8, "optimizer_offload": "cpu"}), "t")).groups
    usual, slow = (
        offloaded_seconds(group.features, {"host_update": rate}, np.array([1e9]))[0]
        for rate in (1.0, 0.5)
    )
    assert slow - usual == pytest.approx(28e9 / (150e9 / 8))
