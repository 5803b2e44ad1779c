"""Verbs about a folder or study: a status that repeats, a scheduler that there is not."""

import json

import pyarrow as pa
import pytest

from scaling.cli import folders
from scaling.errors import InputError
from scaling.record import row_files
from scaling.record.files import write_rows
from scaling.record.row_files import Rows, Unusable
from scaling.study.load import load_study
from scaling.study.paths import StudyPaths
from tests.plans import fitting_plan
from tests.processes import largest_file
from tests.rows import row_of


def test_it_is_said_again_until_all_is_measured(write_study, config, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = write_study(name="watched", axes={"world_size": 1})
    (point,) = fitting_plan(load_study(path, config)).points
    waited = []

    def measured_meanwhile(seconds):
        waited.append(seconds)
        row = StudyPaths(tmp_path / "results" / "watched").row(point.point_id)
        write_rows(row, [row_of(point)])

    monkeypatch.setattr(folders, "sleep", measured_meanwhile)
    folders.status(str(path), watch=True, as_json=True)
    before, after = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (before["progress"]["left"], after["progress"]["left"]) == (1, 0)
    assert after["progress"]["finished"]
    assert waited == [folders.LOOK_EVERY_S]


def test_an_export_that_cannot_be_written_is_refused_before_it_is_made(tmp_path, refusal):
    (tmp_path / "results" / "one").mkdir(parents=True)
    (tmp_path / "out.zip").mkdir()
    told = refusal("export", "results/one", "out.zip")  # before its lack of a study
    assert told == "out.zip: cannot be written: Is a directory\n"
    with largest_file(1000):
        told = refusal("export", "results/one", "other.zip")
    assert told == "other.zip: cannot be written: File too large\n"


def test_a_row_that_may_not_be_read_is_named_and_stays(tmp_path, monkeypatch, capsys):
    path = StudyPaths(tmp_path).row("p")
    theirs = Unusable(path, "cannot be read: Permission denied", refused=True)
    monkeypatch.setattr(row_files, "read_rows", lambda _: Rows(pa.table({"file": []}), (theirs,)))
    folders.report_unreadable_rows(tmp_path)
    assert capsys.readouterr().err == f"Left out: {path}: cannot be read: Permission denied\n"


def test_a_scheduler_that_there_is_not_is_refused_before_anything_is_ended():
    with pytest.raises(InputError, match="--scheduler pbs: allowed: slurm"):
        folders.stop("quickstart", "pbs")
