"""A short form of `make soak`, and the cluster of these tests."""

import pytest

from tests.slurm.lab import LabStudy, end
from tests.slurm.soak import Soak, small_disk

pytestmark = pytest.mark.slurm


def test_every_point_has_one_row_whatever_is_killed(lab):
    lab.start()
    with small_disk(128) as folder:
        study = LabStudy(lab, folder / "study")
        soak = Soak(study, points=30, real=1, seed=7, every_s=(0.5, 2.0), rounds=1, limit_s=600)
        try:
            assert soak.run() == [], study.said
        finally:
            end(study.runs)
    assert len(soak.struck) >= 3  # which is a matter of the machine


def test_the_database_keeps_its_temporary_tables_apart(lab):
    # a mariadbd that starts removes those of every other server in the same folder
    socket = lab.folder / "sql" / "sock"
    asked = lab.ask("mariadb", "--no-defaults", "-S", str(socket), "-Ne", "select @@tmpdir")
    assert asked.strip() == str(lab.folder / "sql" / "tmp")
