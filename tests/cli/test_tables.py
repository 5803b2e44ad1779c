"""`scaling import` takes rows and probes of others into a study, or says what is wrong."""

import re

import pyarrow.parquet as pq
import pytest

from scaling.record.files import write_rows
from tests.analyse.conftest import PAPER_ROW
from tests.conftest import PROJECT
from tests.points import tiny_point
from tests.predict.reference import write_csv
from tests.probe.test_nccl_tests import NCCL
from tests.rows import row_of

pytestmark = pytest.mark.slow


@pytest.fixture
def imported(tmp_path, say, refusal):
    """Runs `scaling import` in a folder with this project's config; its output, or a refusal."""
    (tmp_path / "config").symlink_to(PROJECT / "config")

    def run(*arguments, refused=False):
        if refused:
            return refusal("import", *arguments)
        code, out, err = say("import", *arguments)
        assert code == 0, err
        return out, err

    return run


def test_renamed_columns_are_imported_and_ignored_ones_named(imported, tmp_path):
    row = {"TP": "2", "remarks": "x", **{k: v for k, v in PAPER_ROW.items() if k != "tp"}}
    file = write_csv(tmp_path / "rows.csv", [row])
    out, err = imported(file, "study", "--rename", "TP=tp")
    assert "1 row -> study; next: scaling report study" in out
    assert "rows.csv: ignored columns: remarks" in err
    assert pq.read_table("study/published.parquet")["tp"].to_pylist() == [2]


def test_a_rename_without_an_equals_sign_or_given_twice_is_refused(imported, tmp_path):
    file = write_csv(tmp_path / "rows.csv", [PAPER_ROW])
    told = imported(file, "study", "--rename", "tp", refused=True)
    assert told.endswith("--rename tp: give THEIRS=OURS\n")
    told = imported(file, "study", "--rename", "tp=cp", "--rename", "tp=pp", refused=True)
    assert "--rename tp=pp: give THEIRS=OURS once" in told


def test_output_of_nccl_tests_becomes_the_probes_of_a_study_once(imported, tmp_path):
    (tmp_path / "nccl.txt").write_text(NCCL)
    imported("nccl.txt", "study", "--nccl-tests", "h100-80gb-dgx")
    probes = pq.read_table("study/probes.parquet")
    assert probes["gpu"].to_pylist() == ["h100-80gb"] * 3
    told = imported("nccl.txt", "study", "--nccl-tests", "h100-80gb-dgx", refused=True)
    assert "probes.parquet: exists; give --add or --replace" in told
    told = imported("nccl.txt", "other", "--nccl-tests", "h100-80gb-dgxx", refused=True)
    assert "--nccl-tests h100-80gb-dgxx: did you mean" in told


def test_a_folder_of_rows_is_imported_without_its_broken_files(imported, tmp_path):
    rows = tmp_path / "results" / "theirs" / "rows"
    write_rows(rows / "p.parquet", [row_of(tiny_point())])
    for number in range(20):
        (rows / f"q{number:02}.parquet").write_bytes(b"half a file")
    out, err = imported(rows, "study")
    assert "1 row -> study" in out
    assert "q00.parquet: holds no row of this project" in err
    assert err.splitlines()[8:] == ["    and 12 more"]


def test_a_second_import_is_refused_added_or_takes_the_place_of_the_first(imported, tmp_path):
    one = write_csv(tmp_path / "one.csv", [PAPER_ROW])
    two = write_csv(tmp_path / "two.csv", [PAPER_ROW | {"tp": "4"}])

    def degrees():
        return sorted(pq.read_table("study/published.parquet")["tp"].to_pylist())

    imported(one, "study")
    told = imported(two, "study", refused=True)
    assert "published.parquet: exists; give --add or --replace" in told
    assert degrees() == [2]
    imported(two, "study", "--add")
    assert degrees() == [2, 4]
    told = imported(one, "study", "--add", refused=True)
    assert "one.csv: row 1: was imported before" in told
    imported(one, "study", "--replace")
    assert degrees() == [2]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("x" * 500, "must have at most 200 letters"),
        ("a\x1bb", "must be without control characters"),
        ("a\u202eb", "must be without control characters"),
    ],
)
@pytest.mark.parametrize("column", ["model", "cluster"])
def test_a_name_that_no_page_could_show_is_refused(imported, tmp_path, column, name, wanted):
    file = write_csv(tmp_path / "rows.csv", [PAPER_ROW | {column: name}])
    assert re.search(f"row 1: {column}='.*': {wanted}", imported(file, "study", refused=True))
