"""Columns of others have our names and units, and what was not read is told."""

from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scaling.errors import InputError
from scaling.foreign.columns import Columns
from scaling.foreign.reading import read_rows, read_table
from scaling.foreign.renaming import remarks_of
from scaling.predict.fit.validation import trial
from scaling.predict.read.points import points_of
from tests.predict.conftest import SHAPE

GOOD = ",".join(SHAPE) + ",tp\n" + ",".join(str(v) for v in SHAPE.values()) + ",2\n"


def assumed_of(path: Path, header: str, cells: str) -> tuple[str, ...]:
    """What is assumed of the good row with more columns."""
    head, row = GOOD.splitlines()
    path.write_text(f"{head},outcome,{header}\n{row},ok,{cells}\n")
    return trial(read_table(path), "p.csv").assumptions


def test_names_may_have_blanks_around_them_and_an_index_no_name(tmp_path: Path) -> None:
    header, row = GOOD.splitlines()
    (tmp_path / "p.csv").write_text(
        f",{header.replace(',', ' , ')}\n0,{row}\n", encoding="utf-8-sig"
    )
    points = points_of(Columns(read_rows(tmp_path / "p.csv"), "p.csv"))
    assert points.groups[0].features.tp.tolist() == [2]


def test_a_table_of_another_tool_is_read_as_one_of_ours(tmp_path: Path) -> None:
    header, row = GOOD.splitlines()
    theirs = header.replace("seq_length", "Seq_Len").replace("cluster", "CLUSTER")
    (tmp_path / "p.csv").write_text(
        f"{theirs},#GPUs,remark,Tokens\n"
        f'{row.replace("a100-80gb-dgx", "NVIDIA H100-SXM5")},"1,024",mine,-\n'
        f"{row.replace('a100-80gb-dgx', 'abacus')},2,,-\n"
    )
    columns = Columns(read_rows(tmp_path / "p.csv"), "p.csv")
    points = points_of(columns)
    assert points.world_size[0] == 1024
    assert points.cluster[0] == "h100-80gb"
    assert "cluster: NVIDIA H100-SXM5 is read as h100-80gb" in points.assumptions
    assert points.note[0] is None
    assert points.note[1] == "cluster=abacus is unknown"
    assert np.isnan(columns.numbers("tokens")).all()


def test_a_number_of_hosts_is_one_of_nodes_and_a_list_is_ours(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("Hosts,gpus_per_node\n4,8\n")
    assert read_table(tmp_path / "p.csv").column_names == ["nodes", "gpus_per_node"]
    pq.write_table(pa.table({"hosts": [["a", "b"]]}), tmp_path / "p.parquet")
    assert read_table(tmp_path / "p.parquet").column_names == ["hosts"]


def test_a_memory_without_a_unit_in_its_header_may_have_it_in_every_cell(tmp_path: Path) -> None:
    for cells, column in ((("37GB", "58.5 GiB"), "peak_memory_bytes"), (("37GB", "58"), "mem")):
        (tmp_path / "p.csv").write_text("Mem,tp\n" + "".join(f"{cell},1\n" for cell in cells))
        assert read_table(tmp_path / "p.csv").column_names == [column, "tp"]


def test_a_system_may_state_its_precision_too(tmp_path: Path) -> None:
    rows = ['"System: DGX-GB200, Precision: FP8-CS"', "DGX-H100", ""]
    (tmp_path / "p.csv").write_text("System,tp\n" + "".join(f"{row},1\n" for row in rows))
    table = read_table(tmp_path / "p.csv")
    assert table["gpu"].to_pylist() == ["System: DGX-GB200", "DGX-H100", None]
    assert table["precision"].to_pylist() == ["FP8-CS", None, None]


@pytest.mark.parametrize("other", ["2", "OOM", "2.5", ""])
def test_minus_one_is_no_measurement(tmp_path: Path, other: str) -> None:
    (tmp_path / "p.csv").write_text(f"Step time (ms),tok/s/gpu\n-1,-1\n{other},2\n")
    table = read_table(tmp_path / "p.csv")
    assert table["step_time_s"][0].as_py() is None
    assert table["tokens_per_s_per_gpu"].to_pylist() == [None, 2]


@pytest.mark.parametrize("name", ["step_time_s", "Step time (ms)"])
def test_a_duration_is_no_number(tmp_path: Path, name: str) -> None:
    times = pa.array([timedelta(seconds=12)])
    pq.write_table(pa.table({name: times}), tmp_path / "p.parquet")
    with pytest.raises(
        InputError, match=r"p\.parquet: column .* holds duration\[us\], not numbers"
    ):
        Columns(read_table(tmp_path / "p.parquet"), "p.parquet").numbers("step_time_s")


def test_columns_that_are_not_read_are_told(tmp_path: Path) -> None:
    told = assumed_of(tmp_path / "p.csv", "TP size,Memory,note,empty,Memory (GB)", "4,39,x,,39")
    assert "columns that are not read: TP size (tp counts), Memory (states no unit), note" in told
    many = ",".join(f"x{number}" for number in range(30))
    told = assumed_of(tmp_path / "p.csv", many, ",".join("1" * 30))
    assert any(text.endswith("x18, x19, 10 more") for text in told)
    assert not any("not read" in text for text in assumed_of(tmp_path / "p.csv", "dp", "4"))


@pytest.mark.parametrize(
    ("header", "cell", "sentence"),
    [
        ("Step time", "30500", "column Step time states no unit: taken as seconds"),
        ("step_time_s", '"30,512"', "step_time_s: 30,512 is read as 30512"),
        ("nodes,world_size,cp", "4,16,1", "world_size of 1 rows is not nodes x GPUs of a node"),
        ("remark", "", "dp is not given in 1 rows: taken as 1"),
        ("precision", "", "precision is not given in 1 rows: taken as bf16"),
        ("recompute", "", "activation_checkpointing is not given in 1 rows: taken as none"),
    ],
)
def test_what_a_person_may_have_meant_otherwise_is_told(
    tmp_path: Path, header: str, cell: str, sentence: str
) -> None:
    assert sentence in assumed_of(tmp_path / "p.csv", header, cell)


def test_a_header_that_states_its_unit_is_not_said_to_lack_one(tmp_path: Path) -> None:
    for header, told in (("Step time (ms)", 0), ("Step time (s)", 0), ("Step time", 1)):
        (tmp_path / "p.csv").write_text(f"{header}\n500\n")
        assert len(remarks_of(read_table(tmp_path / "p.csv"))) == told
