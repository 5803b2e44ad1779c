"""One cluster for all tests of this folder."""

import os
import shutil

import pytest

from tests.slurm.lab import TOOLS, Lab, LabStudy, end


@pytest.fixture(scope="session")
def lab():
    missing = [tool for tool in TOOLS if shutil.which(tool, path="/usr/sbin:/usr/bin") is None]
    if missing or os.getuid() != 0:
        why = f"{', '.join(missing)} not found" if missing else "this user is not root"
        pytest.skip(
            f"{why}: a Slurm of our own needs root and the Debian packages slurm-wlm, slurmdbd, "
            "mariadb-server and munge"
        )
    with Lab.running() as cluster:
        yield cluster


@pytest.fixture
def study(lab, tmp_path):
    lab.start()  # whatever the test before has killed
    made = LabStudy(lab, tmp_path / "study")
    yield made
    end(made.runs, lab)
