"""`scaling export`: others get the answer, and nothing of whose machine it was."""

import dataclasses
import io
import json
import zipfile
from collections import Counter

import pyarrow.parquet as pq
import pytest

from scaling.analyse.warehouse import tabulate
from scaling.errors import InputError
from scaling.importing.rows import import_rows
from scaling.predict.read.clusters import site_clusters, site_models
from scaling.record.files import write_rows
from scaling.run.export import export
from scaling.study.paths import StudyPaths
from tests.conftest import PROJECT
from tests.report.synthetic_study import cpu_plan, measured, write_study

pytestmark = pytest.mark.slow

REPORTS = PROJECT / "reports"
# Personal data in a rank's message, each from a line that was once printed.
SECRETS = (
    "/home/alice/x.py", "nfs01:/export/proj/u", "file:///home/bob/", "-I/home/bob/",
    r"C:\Users\bob", "~bob", "bob@lab.org", "hf_AbCdEfGh", "zz-node17",
)  # fmt: skip
STUDY = """\
title: Bob's study at /home/bob
kind: strong  # as bob@lab.org says
axes: {model: [tiny], cluster: [h100]}
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study whose rows name hosts, and whose failures quote what is private."""
    folder = write_study(tmp_path_factory.mktemp("alice") / "one", cpu_plan())
    paths = StudyPaths(folder)
    for path in paths.rows.glob("*.parquet"):
        path.unlink()
    for row in measured(cpu_plan().points):
        said = " ".join(SECRETS) if row.error_message else None
        row = dataclasses.replace(row, hosts=["zz-node17"], error_message=said, job_id="bob-7")
        write_rows(paths.row(row.point_id), [row])
    (folder / "bob.yaml").write_text(STUDY)
    about = {"title": "Bob's study", "file": str(folder / "bob.yaml")}
    paths.study.write_text(json.dumps(about))
    return folder


def contents(archive: zipfile.ZipFile) -> str:
    """All files as one text, tables as their cells."""
    return "\n".join(
        json.dumps(pq.read_table(io.BytesIO(archive.read(name))).to_pylist(), default=str)
        if name.endswith(".parquet")
        else archive.read(name).decode()
        for name in archive.namelist()
    )


def test_an_export_holds_tables_page_plan_and_study_and_nothing_private(study):
    out = study.parent / "one.zip"
    names = export(study, out, REPORTS)
    with zipfile.ZipFile(out) as archive:
        assert archive.namelist() == names
        text = contents(archive)
    assert {"report.html", "study.json", "study.yaml", "points.parquet"} <= {*names}
    assert "tables/sizes.parquet" in names
    assert not any(name.endswith((".csv", ".log")) for name in names)
    for private in (*SECRETS, str(study.parent), "bob-7", "Bob's study"):
        assert private not in text, private
    assert "host-1" in text
    assert "kind: strong" in text


def test_messages_title_and_comments_are_kept_if_they_are_asked_for(study):
    out = study.parent / "told.zip"
    export(study, out, REPORTS, with_messages=True)
    with zipfile.ZipFile(out) as archive:
        text = contents(archive)
    assert "Bob's study" in text
    assert "as bob@lab.org says" in text
    assert "nfs01:/export/proj/u" in text


def test_an_export_has_the_studys_numbers_and_rows_that_can_be_imported(study, tmp_path):
    out, exported, elsewhere = study.parent / "same.zip", tmp_path / "zip", tmp_path / "elsewhere"
    export(study, out, REPORTS)
    zipfile.ZipFile(out).extractall(exported)
    import_rows(exported / "rows" / "rows.parquet", elsewhere, site_clusters(), site_models())
    tabulate(study, REPORTS / "sql")
    tabulate(elsewhere, REPORTS / "sql")

    def table(folder, name, *less):
        return pq.read_table(folder / "tables" / f"{name}.parquet").drop_columns([*less])

    told = [table(folder, "estimates", "error_message") for folder in (exported, study)]
    assert told[0].to_pylist() == told[1].to_pylist()
    columns = ("layout", "world_size", "outcome", "step_time_s", "peak_memory_bytes")
    own, imported = (
        Counter(
            tuple(row[name] for name in columns) for row in table(one, "measurements").to_pylist()
        )
        for one in (study, elsewhere)
    )
    assert own == imported


def test_export_refuses_a_folder_without_a_study_and_a_wrong_output(tmp_path):
    with pytest.raises(InputError, match="holds no study; `scaling plan`"):
        export(tmp_path / "none", tmp_path / "out.zip", REPORTS)
    with pytest.raises(InputError, match=r"must be a \.zip in an existing folder"):
        export(tmp_path, tmp_path / "none" / "out.zip", REPORTS)


def test_a_broken_file_is_one_sentence(tmp_path):
    (tmp_path / "points.parquet").write_text("half a table")
    with pytest.raises(InputError, match=r"points\.parquet: is no Parquet file of "):
        export(tmp_path, tmp_path / "out.zip", REPORTS)
