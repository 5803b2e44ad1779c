"""Another project of the same import name is said at the start."""

import importlib.metadata
from types import SimpleNamespace

import pytest

from scaling.cli import folders
from scaling.errors import InputError

OURS = SimpleNamespace(value="scaling.cli.verbs:main")


def test_another_project_of_this_import_name_is_one_sentence(monkeypatch):
    other = SimpleNamespace(version="0.2.3", entry_points=[])
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: other)
    assert "another project, scaling 0.2.3" in (folders.name_clash() or "")


@pytest.mark.parametrize("points", [[OURS], None])
def test_this_project_alone_is_no_clash(monkeypatch, points):
    def distribution(name):
        if points is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return SimpleNamespace(version="0.1.0", entry_points=points)

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    assert folders.name_clash() is None


def test_a_scheduler_that_there_is_not_is_refused_before_anything_is_ended():
    with pytest.raises(InputError, match="--scheduler pbs: allowed: local, slurm"):
        folders.stop("quickstart", "pbs")
