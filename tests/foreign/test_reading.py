"""Files that others made: read as they are, or refused in one sentence that says what is wrong."""

import gzip
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scaling.errors import InputError
from scaling.foreign.columns import Columns
from scaling.foreign.conditions import rows_where
from scaling.foreign.reading import read_rows, read_table
from scaling.predict.fit.trial import trial
from scaling.predict.read.points import points_of
from tests.predict.conftest import SHAPE

GOOD = ",".join(SHAPE) + ",tp\n" + ",".join(str(v) for v in SHAPE.values()) + ",2\n"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            GOOD.encode() + b"M\xfcnchen\n",
            r"p\.csv: line 3: byte 0xfc is not UTF-8; save",
        ),
        (GOOD.encode("utf-16"), r"p\.csv: is UTF-16; save it as UTF-8"),
        (
            GOOD.replace(",", ";").encode(),
            r"its columns are separated by semicolons; sepa",
        ),
        (GOOD.replace(",", "\t").encode(), r"its columns are separated by tabs"),
        (GOOD.replace(",", "|").encode(), r"its columns are separated by bars"),
        (gzip.compress(GOOD.encode()), r"p\.csv: is compressed; unpack it"),
        (b"PK\x03\x04", r"p\.csv: is an Excel workbook or a zip; give its table as CSV"),
        (b"PAR1", r"p\.csv: is Parquet; name it \*\.parquet"),
        (GOOD.replace("llama-7b", '"llama-7b').encode(), r"p\.csv: line 2: a quote is never"),
        (GOOD.replace("model", "tp", 1).encode(), r"names the column 'tp' 2 times; keep one"),
        (b"", r"p\.csv: its first line is empty"),
        (b"# from a paper\n" + GOOD.encode(), r"line 1 is '# from a paper'; it must name the col"),
        (b"sep=,\n" + GOOD.encode(), r"p\.csv: line 1 is 'sep=,'; it must name the columns"),
        (GOOD.encode() + b"1,2\n", r"p\.csv: not a readable table: CSV parse error: Expected"),
        (GOOD.replace("llama-7b", "x" * 3_000_000).encode(), r"table: a line is longer than a meg"),
    ],
)
def test_a_csv_that_is_none_is_told_what_is_wrong_with_it(
    tmp_path: Path, content: bytes, sentence: str
) -> None:
    (tmp_path / "p.csv").write_bytes(content)
    with pytest.raises(InputError, match=sentence) as refused:
        points_of(Columns(read_rows(tmp_path / "p.csv"), "p.csv"))
    assert len(str(refused.value)) < 600


def test_a_wrong_cell_stands_where_an_editor_finds_it(tmp_path: Path) -> None:
    cells = [str(value) for value in SHAPE.values()]
    lines = [",".join(SHAPE) + ",tp,remark", "", ",".join([*cells, '2,"two\nlines"'])]
    lines += ["", ",".join([*cells, "0,x"])]
    (tmp_path / "p.csv").write_text("\n".join(lines) + "\n")
    columns = Columns(read_rows(tmp_path / "p.csv"), "p.csv")
    for some in (columns, columns.filter(np.array([False, True]))):
        with pytest.raises(InputError, match=r"p\.csv: line 6: tp=0: must be a whole number"):
            points_of(some)


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


def test_lines_of_empty_cells_at_the_end_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(f"{GOOD}{',' * (len(SHAPE))}\r\n,, ,\n\n")
    assert read_table(tmp_path / "p.csv").num_rows == 1


def test_a_number_of_hosts_is_one_of_nodes_and_a_list_is_ours(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("Hosts,gpus_per_node\n4,8\n")
    assert read_table(tmp_path / "p.csv").column_names == ["nodes", "gpus_per_node"]
    pq.write_table(pa.table({"hosts": [["a", "b"]]}), tmp_path / "p.parquet")
    assert read_table(tmp_path / "p.parquet").column_names == ["hosts"]


def test_a_memory_without_a_unit_in_its_header_may_have_it_in_every_cell(tmp_path: Path) -> None:
    for cells, column in ((("37GB", "58.5 GiB"), "peak_memory_bytes"), (("37GB", "58"), "mem")):
        (tmp_path / "p.csv").write_text("Mem,tp\n" + "".join(f"{cell},1\n" for cell in cells))
        assert read_table(tmp_path / "p.csv").column_names == [column, "tp"]


def test_unreadable_files_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("not parquet")
    empty = tmp_path / "rows"
    empty.mkdir()
    with pytest.raises(InputError, match=r"x\.parquet: not a readable"):
        read_table(tmp_path / "x.parquet")
    with pytest.raises(InputError, match="no such file"):
        read_table(tmp_path / "absent.csv")
    with pytest.raises(InputError, match="rows: is a folder; give a CSV"):
        read_table(empty)
    with pytest.raises(InputError, match=r"holds no \*\.parquet"):
        read_rows(empty)


def test_an_inch_in_a_cell_opens_no_quote(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text('disk,tp\n5" disk,1\n')
    assert read_table(tmp_path / "p.csv").to_pylist() == [{"disk": '5" disk', "tp": 1}]


@pytest.mark.parametrize("name", ["step_time_s", "Step time (ms)"])
def test_a_duration_is_no_number(tmp_path: Path, name: str) -> None:
    times = pa.array([timedelta(seconds=12)])
    pq.write_table(pa.table({name: times}), tmp_path / "p.parquet")
    with pytest.raises(
        InputError, match=r"p\.parquet: column .* holds duration\[us\], not numbers"
    ):
        Columns(read_table(tmp_path / "p.parquet"), "p.parquet").numbers("step_time_s")


def test_a_folder_of_row_files_is_one_table(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "b": [None]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": [2], "b": [1.5]}), tmp_path / "2.parquet")
    assert read_rows(tmp_path).to_pydict() == {"a": [1, 2], "b": [None, 1.5]}


def assumed_of(path: Path, header: str, cells: str) -> tuple[str, ...]:
    """What is assumed of the good row with more columns."""
    head, row = GOOD.splitlines()
    path.write_text(f"{head},outcome,{header}\n{row},ok,{cells}\n")
    return trial(read_table(path), "p.csv").points.assumptions


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


def test_a_comma_is_told_once_a_column() -> None:
    columns = Columns(pa.table({"tokens_per_s": ["1,000", "2,000", "3,000"]}), "t")
    assert columns.numbers("tokens_per_s").tolist() == [1000, 2000, 3000]
    assert columns.assumptions == ["tokens_per_s: 1,000 is read as 1000"]


@pytest.mark.parametrize("header", ["release", "Container", "framework_version"])
def test_a_release_is_text_though_it_looks_like_a_number(tmp_path: Path, header: str) -> None:
    (tmp_path / "p.csv").write_text(f"{header}\n25.10\n26.02\n")
    assert read_table(tmp_path / "p.csv")["release"].to_pylist() == ["25.10", "26.02"]


def test_true_is_no_number_and_false_is_none_of_them() -> None:
    columns = Columns(pa.table({"zero_stage": [None, True], "ep": [None, False]}), "t")
    with pytest.raises(InputError, match="t: row 2: zero_stage=True: must be a number"):
        columns.numbers("zero_stage")
    assert columns.numbers("ep").tolist()[1] == 0


@pytest.mark.parametrize("condition", ["world_size", "hash(row_index) % 2", "null", "'a'"])
def test_a_condition_is_true_or_false(condition: str) -> None:
    table = pa.table({"world_size": [8, 16]})
    with pytest.raises(InputError, match=r"where true or false is needed|Could not convert"):
        rows_where(table, condition, "t", "--where")


def test_conditions_are_sql_over_the_columns_and_the_row_number() -> None:
    table = pa.table({"world_size": [8, 16, 32, 64]})
    assert rows_where(table, "world_size > 8 and row_index < 3", "t", "--where").tolist() == [
        False, True, True, False,
    ]  # fmt: skip
    with pytest.raises(InputError, match=r"--where 'wrold_size > 8'"):
        rows_where(table, "wrold_size > 8", "t", "--where")


def test_a_batch_too_large_is_one_of_tokens_where_these_are_whole_sequences(tmp_path: Path) -> None:
    def batch_of(cell: int) -> float:
        head, row = GOOD.splitlines()
        path = tmp_path / "p.csv"
        path.write_text(f"{head},global_batch_size\n{row},{cell}\n")
        return float(points_of(Columns(read_table(path), "p.csv")).global_batch_size[0])

    assert batch_of(4096 * 1024) == 1024
    with pytest.raises(InputError, match="must be a whole number from 1 to"):
        batch_of(4096 * 8192 + 1)
