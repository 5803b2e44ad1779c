"""Tables of others: read in our columns and types, or refused in one sentence."""

import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scaling.errors import InputError
from scaling.importing.reader import read_rows, read_table
from scaling.record.files import write_rows
from tests.analyse.conftest import some_point
from tests.conftest import published_csv
from tests.report.synthetic_study import timed_row

pytestmark = pytest.mark.slow

GOOD = {
    "model": "llama2_7b", "framework": "torchtitan", "cluster": "h100-80gb-dgx", "num_layers": 32,
    "world_size": 8, "tp": 2, "pp": 1, "cp": 1, "dp": 4, "sequence_parallel": True,
    "precision": "mxfp8", "outcome": "ok", "step_time_s": 1.5, "peak_memory_bytes": 2**35,
}  # fmt: skip


def csv_of(*records: dict) -> str:
    rows = [[*GOOD], [*GOOD.values()], *([*(GOOD | record).values()] for record in records)]
    return "\n".join(",".join(map(str, cells)) for cells in rows)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Writes the content of `t.csv`, or of another file, in the current folder."""
    monkeypatch.chdir(tmp_path)

    def write(content: str | bytes, name: str = "t.csv") -> Path:
        data = content.encode() if isinstance(content, str) else content
        Path(name).write_bytes(data)
        return Path(name)

    return write


def test_csv_json_lines_and_parquet_of_the_same_rows_are_the_same_table(written):
    records = [GOOD, GOOD | {"tp": None, "sequence_parallel": None, "step_time_s": 2}]
    pq.write_table(pa.Table.from_pylist(records), written("", "t.parquet"))
    files = [
        written(csv_of({"tp": "", "sequence_parallel": "", "step_time_s": "2"})),
        written("\n".join(map(json.dumps, records)), "t.jsonl"),
        Path("t.parquet"),
    ]
    tables = [read_table(file).rows for file in files]
    columns = [{name: table[name].to_pylist() for name in GOOD} for table in tables]
    assert columns[0] == columns[1] == columns[2]
    assert columns[0]["tp"] == [2, None]
    assert columns[0]["sequence_parallel"] == [True, None]
    assert tables[0].schema.field("peak_memory_bytes").type == pa.int64()


@pytest.mark.parametrize(
    ("header", "ours"),
    [
        ("TP", "tp"), ("Model", "model"), ("step time (s)", "step_time_s"),
        ("step_time_ms", "step_time_s"), ("num_layer", "num_layers"), ("frame-work", "framework"),
    ],
)  # fmt: skip
def test_a_header_that_is_nearly_ours_is_refused_until_it_is_renamed(written, header, ours):
    file = written(csv_of().replace(ours, header, 1))
    with pytest.raises(InputError, match=r"t\.csv: column .* is nearly " + ours):
        read_table(file)
    assert read_table(file, rename={header: ours}).rows[ours].to_pylist() == [GOOD[ours]]
    assert ours not in read_table(file, rename={header: ""}).rows.column_names


def test_a_renamed_header_that_the_file_lacks_is_refused(written):
    with pytest.raises(InputError, match=r"--rename TTP=: did you mean 'tp'"):
        read_table(written(csv_of()), rename={"TTP": "tp"})
    with pytest.raises(InputError, match=r"--rename =tpp: did you mean 'tp'"):
        read_table(written(csv_of()), rename={"tp": "tpp"})


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        ({"tp": "0x10"}, "tp=0x10: the column holds whole numbers"),
        ({"step_time_s": "~1"}, "step_time_s=~1: the column holds numbers"),
        ({"step_time_s": "9.1+-0.1"}, r"step_time_s=9.1\+-0.1: the column holds numbers"),
        ({"step_time_s": "٩"}, "step_time_s=٩: the column holds numbers"),
        ({"step_time_s": "1e400"}, "step_time_s=1e400: the column holds numbers"),
        ({"step_time_s": "nan"}, "step_time_s=nan: the column holds numbers"),
        ({"step_time_s": "9.1 s"}, "step_time_s=9.1 s: the column holds numbers"),
        ({"step_time_s": "0"}, "step_time_s=0.0: must be a finite number above 0"),
        ({"step_time_s": "1e27"}, r"step_time_s=1e\+27: must be at most 1e\+09"),
        ({"tp": "1_000"}, "tp=1_000: the column holds whole numbers"),
        ({"tp": "2.5"}, "tp=2.5: the column holds whole numbers"),
        ({"tp": "0"}, "tp=0: must be at least 1"),
        ({"num_layers": 2**62}, "num_layers=4611686018427387904: the column holds whole numbers"),
        ({"num_layers": "10000001"}, "num_layers=10000001: must be at most 10,000,000"),
        ({"sequence_parallel": "yes"}, "sequence_parallel=yes: the column holds true or false"),
        ({"precision": "bf17"}, "precision='bf17': must be one of fp32, .*, nvfp4"),
        ({"outcome": "fast"}, "outcome='fast': must be one of ok, oom, "),
        ({"world_size": "16"}, "world_size=16: is not tp x pp x cp x dp"),
    ],
    ids=str,
)
def test_a_wrong_cell_is_told_with_file_row_column_and_value(written, cell, sentence):
    with pytest.raises(InputError, match=rf"t\.csv: row 2: {sentence}"):
        read_table(written(csv_of(cell)))


def test_a_cell_that_is_no_list_is_told_what_the_column_holds(written):
    with pytest.raises(InputError, match="row 1: hosts=a: the column holds lists of text"):
        read_table(written("model,hosts\nm,a"))


@pytest.mark.parametrize(
    ("axis", "word"),
    [("attention", "zzz"), ("engine", "!xx"), ("routing", "odd"), ("zero_stage", 4)],
)
def test_a_word_that_is_no_value_of_its_axis_is_refused(written, axis, word):
    with pytest.raises(InputError, match=rf"row 1: {axis}='?{word}'?: must be "):
        read_table(written(f"model,{axis}\nm,{word}"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", b""),
        ("t.csv", b"model,tp\nM\xfcller,1\n"),
        ("t.csv", csv_of().encode("utf-16")),
        ("t.csv", gzip.compress(csv_of().encode())),
        ("t.csv", csv_of().replace("llama2_7b", '"llama2_7b').encode()),
        ("t.csv", csv_of().replace("model", "tp", 1).encode()),
        ("t.csv", csv_of().encode() + b"\n1,2\n"),
        ("t.csv", csv_of().replace(",", ";").encode()),
        ("t.csv", csv_of().replace("llama2_7b", "x" * 3_000_000).encode()),
        ("t.csv", b'"' * 3_000_000),
        ("t.csv", b"PAR1\0\0"),
        ("t.parquet", b"PAR1" + b"x" * 99 + b"PAR1"),
        ("t.jsonl", b"[" * 200_000),
        ("t.jsonl", b'{"tp":' * 200_000),
        ("t.jsonl", b"1\n2"),
        ("t.jsonl", b'{"tp": NaN}'),
        ("t.jsonl", b'{"tp": 1'),
        ("t.jsonl", b""),
        ("t.xlsx", b"PK\3\4"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_file_that_is_no_table_is_refused_in_a_short_sentence(written, name, content):
    with pytest.raises(InputError, match=r"^t\.\w+: ") as refused:
        read_table(written(content, name))
    assert len(str(refused.value)) < 400
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
def test_what_is_no_file_is_refused_and_never_opened(tmp_path, make):
    make(tmp_path / "t.csv")
    with pytest.raises(InputError, match="is no file; give a CSV"):
        read_table(tmp_path / "t.csv")


def test_a_folder_of_our_rows_is_one_table_of_typed_columns(tmp_path):
    points = [some_point(size) for size in (1, 2)]
    for point in points:
        write_rows(tmp_path / f"{point.point_id}.parquet", [timed_row(point, 2.0)])
    table = read_rows(tmp_path)
    assert {*table.rows["point_id"].to_pylist()} == {point.point_id for point in points}


@pytest.mark.parametrize(
    "name", ["llama_layouts_h100", "modern_megatron_bridge", "internevo_7b_a100"]
)
def test_published_tables_in_our_columns_are_read_whole(name):
    path = published_csv(name)
    assert read_table(path).rows.num_rows == len(path.read_text().splitlines()) - 1
