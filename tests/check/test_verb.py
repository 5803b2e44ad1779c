"""`scaling check` on the machine of the tests."""

import json
import subprocess

import pytest
from typer.testing import CliRunner

from scaling.cli.verbs import app
from scaling.errors import InputError
from tests.ran import scaling

pytestmark = pytest.mark.slow


def test_a_machine_is_checked_whatever_it_lacks(tmp_path):
    ran = scaling(tmp_path, "check", "check.json", "--only", "facts,kernels,meters")
    said = json.loads((tmp_path / "check.json").read_text())
    assert (tmp_path / "check.txt").read_text() == ran.stdout
    states = {line["name"]: line["state"] for line in said["lines"]}
    assert {line["section"] for line in said["lines"]} == {"facts", "kernels", "meters"}
    assert set(states.values()) <= {"pass", "fail", "not here"}
    assert states["torch version"] == "pass"
    assert ran.returncode == int("fail" in states.values())
    assert said["facts"]["host"]
    for line in said["lines"]:
        assert line["value"] is not None or line["said"], line


@pytest.mark.parametrize(
    ("out", "sentence"),
    [
        ("no/such/check.json", "there is no folder no/such to write it in"),
        (".", "must be a file, such as check.json"),
    ],
)
def test_a_file_that_cannot_be_written_is_one_sentence(out, sentence):
    told = CliRunner().invoke(app, ["check", out]).exception
    assert isinstance(told, InputError)
    assert str(told) == f"{out}: {sentence}"


def test_what_is_refused_is_refused_before_anything_is_checked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", None)
    told = CliRunner().invoke(app, ["check", "check.json", "--only", "facts,zzz"]).exception
    assert isinstance(told, InputError)
    assert str(told) == "--only zzz: allowed: facts, kernels, meters, training"
    (tmp_path / "check.json").mkdir()
    told = CliRunner().invoke(app, ["check", "check.json"]).exception
    assert isinstance(told, InputError)
    assert str(told) == "check.json: cannot be written: Is a directory"
