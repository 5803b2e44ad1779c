"""A cluster's rates from probes, on seconds of rates that are known."""

import dataclasses

import pyarrow as pa
import pytest

from scaling.cluster.hardware import Cluster
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


def gemm(size):
    # 70 % of 312 TFLOP/s for a large one, every dimension at half of that at 100 elements
    return {
        "kind": "gemm", "m": size, "n": size, "k": size,
        "seconds": 2 * (size + 100) ** 3 / (0.7 * 312e12),
    }  # fmt: skip


def all_reduce(size, nodes, seconds):
    return {
        "kind": "all_reduce", "ranks": 8 * nodes, "nodes": nodes, "message_bytes": size,
        "seconds": seconds,
    }  # fmt: skip


def test_gemms_of_several_sizes_tell_efficiency_and_half_size():
    told = told_by(*(gemm(2**k) for k in range(8, 14)))
    assert told["gemm_efficiency"] == pytest.approx(0.7, rel=0.02)
    assert told["gemm_half_size"] == pytest.approx(100, rel=0.06)


def test_gemms_of_all_precisions_count_alike():
    wide = [{**gemm(2**k), "precision": "bf16"} for k in range(8, 14)]
    # fp32 at half the efficiency: the mean of the logarithms lies between
    slow = [{**one, "precision": "fp32", "seconds": 2 * one["seconds"] * 312 / 19.5}
            for one in wide]  # fmt: skip
    told = told_by(*wide, *slow)
    assert told["gemm_efficiency"] == pytest.approx(0.7 / 2**0.5, rel=0.02)


def test_two_gpus_of_a_mesh_are_held_against_the_link_between_them():
    gib = 2**30
    pair = {"kind": "all_reduce", "ranks": 2, "nodes": 1, "message_bytes": gib}
    told = told_by({**pair, "cluster": "mi300x-192gb", "seconds": gib / 48e9})
    assert told["link_efficiency"] == pytest.approx(48 / 64)


def test_collectives_tell_bandwidth_inside_and_between_nodes():
    gib = 2**30
    inside = 2 * 7 / 8 * gib / 240e9  # 240 GB/s on links of 300
    between = 2 * 15 / 16 * gib / 120e9  # 120 GB/s on nodes of 200
    rows = [all_reduce(gib, 1, inside), all_reduce(gib, 2, between)]
    told = told_by(*rows)
    assert told == {
        "link_efficiency": pytest.approx(0.8),
        "network_efficiency": pytest.approx(0.6),
    }


def test_groups_that_share_a_nodes_links_are_counted_together():
    gib = 2**30
    seconds = 2 * 1 / 2 * gib / 15e9  # each of 8 pairs over two nodes moves 15 GB/s
    pairs = {"kind": "all_reduce", "ranks": 2, "nodes": 2, "message_bytes": gib}
    together = told_by({**pairs, "groups": 8, "seconds": seconds})
    assert together["network_efficiency"] == pytest.approx(8 * 15 / 200)
    # alone it cannot fill the node's links, so it says nothing of them
    alone = told_by({**pairs, "groups": 1, "seconds": seconds})
    assert alone == {}


def test_hosts_that_gpu_links_join_are_one_node():
    sent = {"cluster": "rack", "kind": "all_reduce", "message_bytes": 2**30, "groups": 1}
    pairs = {**sent, "ranks": 2, "stride": 4, "nodes": 2, "groups": 4, "seconds": 2**30 / 720e9}
    rack = {**sent, "ranks": 72, "stride": 1, "nodes": 18}
    rack["seconds"] = 2 * 71 / 72 * 2**30 / 720e9
    racks = {**pairs, "stride": 72, "nodes": 2, "groups": 72, "seconds": 2**30 / 25e9}
    described = Cluster(
        gpu="gb200-186gb", gpus_per_node=4, nodes=36, node_link_bytes_per_s=200e9, source="test"
    )
    told = told_by(pairs, rack, racks, clusters={"rack": described})
    assert told == {
        "link_efficiency": pytest.approx(0.8),
        "network_efficiency": pytest.approx(0.5),
    }


@pytest.mark.parametrize(
    ("cluster", "whole"),
    [("a100-80gb-dgx", 312e12), ("h100-80gb-dgx", 0.7 * 781.6e12)],  # 0.7: made before Hopper
)
def test_attention_tells_what_its_kernel_reaches(cluster, whole):
    rows = [
        {"kind": "attention", "attention": "flash2", "precision": "bf16", "seconds": 1.0,
         "flop_per_s": share * whole, "cluster": cluster}
        for share in (0.1, 0.5, 0.5)
    ]  # fmt: skip
    told = told_by(*rows)
    assert told == {"flash2_efficiency": pytest.approx(0.5, rel=1e-3)}


def test_the_table_a_probe_leaves_is_read_as_it_is():
    nothing = dict.fromkeys(field.name for field in dataclasses.fields(Probe))
    row = {**nothing, "cluster": "a100-80gb-dgx", "gpu": "a100-80gb", "gpus_per_node": 8}
    row |= {"precision": "bf16", "started_at": "2026-01-01T00:00:00+00:00"}
    measured = Probe(
        **{**row, "outcome": "ok", **all_reduce(2**30, 1, 2 * 7 / 8 * 2**30 / 240e9), "groups": 1}
    )
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


def test_an_impossible_probe_stays_inside_physical_bounds():
    rows = [all_reduce(2**30, 1, 1e-6)]
    told = told_by(*rows)
    assert told["link_efficiency"] == 0.95


def test_an_update_on_the_host_tells_its_rate_while_all_ranks_share_it():
    row = {"kind": "host_update", "seconds": 0.1, "message_bytes": 2**28}
    for per_node, usual in ((1, 30e9), (8, 150e9 / 8)):
        told = told_by({**row, "gpus_per_node": per_node, "copy_bytes_per_s": 0.5 * usual})
        assert told == {"host_update": pytest.approx(0.5)}
