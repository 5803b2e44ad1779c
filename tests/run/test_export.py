"""`scaling export`: what others get holds the answer and nothing of whose machine it was."""

import io
import json
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scaling.analyse.warehouse import tabulate
from scaling.errors import InputError
from scaling.run.export import export, scrub
from tests.conftest import PROJECT
from tests.report.synthetic_study import cpu_plan, write_study

pytestmark = pytest.mark.slow

REPORTS = PROJECT / "reports"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The crate of a small study one of whose points failed in somebody's home; and the study."""
    study = write_study(tmp_path_factory.mktemp("alice") / "one", cpu_plan())
    tabulate(study, REPORTS / "sql")
    path = study / "tables" / "measurements.parquet"
    table = pq.read_table(path)
    place = table.schema.get_field_index("error_message")
    message = pa.array(["/home/alice/sweeps/x.py: killed"] * table.num_rows, pa.string())
    pq.write_table(table.set_column(place, table.schema.field(place), message), path)
    out = study.parent / "one.zip"
    export(study, out, REPORTS)
    with zipfile.ZipFile(out) as archive:
        yield archive, study


@pytest.mark.parametrize(
    ("text", "handed_on"),
    [
        ("No such file: /home/alice/sweeps/x.py:12", "No such file: x.py:12"),
        ("alice@node1 ran out of memory", "user@node1 ran out of memory"),
        ("malice is no name", "malice is no name"),
        ("https://a.org/b/c and tokens/s/GPU stay", "https://a.org/b/c and tokens/s/GPU stay"),
        ("'~/sweeps/results/rows' is full", "'rows' is full"),
    ],
)
def test_paths_end_in_their_last_name_and_the_user_is_nobody(text, handed_on):
    assert scrub(text, "alice") == handed_on


def test_a_crate_holds_tables_page_and_study_and_no_path_of_this_machine(exported):
    archive, study = exported
    names = set(archive.namelist())
    tables = {f"tables/{path.name}" for path in (study / "tables").glob("*.parquet")}
    assert tables | {"report.html", "study.json", "points.parquet"} <= names
    assert not any("rows/" in name or "logs" in name for name in names)
    for name in names:
        content = archive.read(name)
        if name.endswith(".parquet"):
            table = pq.read_table(io.BytesIO(content))
            content = json.dumps(table.to_pylist(), default=str).encode()
        assert str(study.parent).encode() not in content, name
        assert b"/home/alice" not in content, name


def test_a_crate_says_of_each_file_what_it_is(exported):
    archive, _ = exported
    graph = json.loads(archive.read("ro-crate-metadata.json"))["@graph"]
    entities = {entity["@id"]: entity for entity in graph}
    parts = {part["@id"] for part in entities["./"]["hasPart"]}
    files = {name for name in archive.namelist() if not name.endswith("/")}
    assert parts == files - {"ro-crate-metadata.json"}
    assert "fastest" in entities["tables/best.parquet"]["description"]


def test_a_table_that_cannot_be_read_is_one_sentence(tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "best.parquet").write_text("half a table")
    with pytest.raises(InputError, match=r"tables/best\.parquet: is no Parquet file of "):
        export(tmp_path, tmp_path / "out.zip", tmp_path)


def test_a_study_without_tables_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match="empty; `scaling tabulate"):
        export(tmp_path / "none", tmp_path / "out.zip", REPORTS)
