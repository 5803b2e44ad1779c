"""Files that others made: read as they are, or refused in one sentence that says what is wrong."""

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scaling.errors import InputError
from scaling.foreign.columns import Columns
from scaling.foreign.conditions import rows_where
from scaling.foreign.reading import read_rows, read_table
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


def test_lines_of_empty_cells_at_the_end_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(f"{GOOD}{',' * (len(SHAPE))}\r\n,, ,\n\n")
    assert read_table(tmp_path / "p.csv").num_rows == 1


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


def test_a_folder_of_row_files_is_one_table(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "b": [None]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": [2], "b": [1.5]}), tmp_path / "2.parquet")
    assert read_rows(tmp_path).to_pydict() == {"a": [1, 2], "b": [None, 1.5]}


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


def test_conditions_may_use_the_headers_of_the_file_unless_these_have_other_units(
    tmp_path: Path,
) -> None:
    (tmp_path / "p.csv").write_text("#GPUs,Seq Len,Batch Size,Step time (ms)\n8,1,2,5\n16,1,2,5\n")
    table = read_table(tmp_path / "p.csv")
    condition = '"#GPUs" = 8 and "seq len" = world_size / 8 and "batch size" = 2'
    assert rows_where(table, condition, "p.csv", "--where").tolist() == [True, False]
    with pytest.raises(InputError, match=r"not found in FROM clause! The columns are world_size, "):
        rows_where(table, '"Step time (ms)" > 1', "p.csv", "--where")


def test_a_batch_too_large_is_one_of_tokens_where_these_are_whole_sequences(tmp_path: Path) -> None:
    def batch_of(cell: int) -> float:
        head, row = GOOD.splitlines()
        path = tmp_path / "p.csv"
        path.write_text(f"{head},global_batch_size\n{row},{cell}\n")
        return float(points_of(Columns(read_table(path), "p.csv")).global_batch_size[0])

    assert batch_of(4096 * 1024) == 1024
    with pytest.raises(InputError, match="must be a whole number from 1 to"):
        batch_of(4096 * 8192 + 1)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.json", '[{"tp": 2, "Step time (ms)": "500 (480)"}, {"pp": 1, "tp": null}]'),
        ("p.jsonl", '{"tp": 2, "Step time (ms)": "500 (480)"}\n{"pp": 1, "tp": null}\n'),
    ],
)
def test_json_is_a_list_of_records_or_one_a_line(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    columns = Columns(read_table(tmp_path / name), name)
    assert columns.numbers("step_time_s").tolist()[0] == 0.5
    assert columns.assumptions == ["step_time_s: 500 (480) is read as 0.5"]
    assert columns.table.select(["tp", "pp"]).to_pylist() == [
        {"tp": 2, "pp": None}, {"tp": None, "pp": 1},
    ]  # fmt: skip
    for wrong in ("[1]", "[]", '{"tp"'):
        (tmp_path / name).write_text(wrong)
        with pytest.raises(InputError, match="not a readable table"):
            read_table(tmp_path / name)
