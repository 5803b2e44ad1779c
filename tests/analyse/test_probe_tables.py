"""Tables of probes: nccl-tests' bus bandwidth, GEMM rates, hosts that lag."""

import pyarrow as pa
import pytest

from scaling.record.files import write_points, write_table
from scaling.study.grid import Plan
from tests.analyse.conftest import read, some_point, tabulate_only

pytestmark = pytest.mark.slow

MIB = 2**20


@pytest.fixture
def probed(tmp_path):
    """Tables of a study with these probes."""

    def run(*probes):
        names = {name for probe in probes for name in probe}
        common = {"cluster": "h100", "outcome": "ok"}
        columns = {
            name: [(common | probe).get(name) for probe in probes] for name in names | common.keys()
        }
        write_points(tmp_path, Plan(points=(some_point(1),), refusals=()))
        write_table(tmp_path / "probes.parquet", pa.table(columns))

        def table(name):
            tabulate_only(tmp_path, tmp_path / "sql" / name, name)
            return read(tmp_path / "tables" / f"{name}.parquet")

        return table

    return run


@pytest.mark.parametrize(
    ("kind", "factor"),
    [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("all_to_all", 0.75),
     ("broadcast", 1.0), ("send_recv", 1.0)],
)  # fmt: skip
def test_bus_bandwidth_counts_what_the_links_of_four_ranks_carry(probed, kind, factor):
    one = {"kind": kind, "ranks": 4, "nodes": 1, "message_bytes": 64 * MIB, "seconds": 0.001}
    (found,) = probed(one)("collectives")
    assert found["bus_bytes_per_s"] == pytest.approx(factor * 64 * MIB / 0.001)


def test_hosts_of_one_shape_share_a_point_and_failures_have_none(probed):
    one = {"kind": "all_reduce", "ranks": 8, "nodes": 1, "message_bytes": MIB}
    found = probed(
        one | {"host": "a", "seconds": 1.0}, one | {"host": "b", "seconds": 3.0},
        one | {"host": "c", "seconds": 2.0}, one | {"host": "d", "outcome": "wrong"},
    )("collectives")  # fmt: skip
    assert [(row["probes"], row["seconds"]) for row in found] == [(3, 2.0)]


def test_groups_of_neighbours_and_of_ranks_further_apart_are_not_pooled(probed):
    one = {"kind": "all_reduce", "ranks": 4, "nodes": 1, "groups": 2, "message_bytes": MIB}
    found = probed(one | {"stride": 1, "seconds": 1.0}, one | {"stride": 2, "seconds": 3.0})(
        "collectives"
    )
    assert [(row["stride"], row["seconds"]) for row in found] == [(1, 1.0), (2, 3.0)]


def test_a_study_without_probes_has_an_empty_table(tmp_path):
    write_points(tmp_path, Plan(points=(some_point(1),), refusals=()))
    tabulate_only(tmp_path, tmp_path / "sql", "collectives")
    assert read(tmp_path / "tables" / "collectives.parquet") == []
