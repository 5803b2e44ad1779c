"""What is installed works alone: wheels, without this checkout, in a folder of one's own."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.ran import rows_of

DEPENDENCIES = sysconfig.get_path("purelib")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The wheels of the project and of its executor plugin."""
    folder = tmp_path_factory.mktemp("wheels")
    for source in (PROJECT / "workflow" / "executor", PROJECT):
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
            check=True, cwd=source, capture_output=True,
        )  # fmt: skip
    return sorted(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheels, tmp_path_factory):
    """An environment that holds these wheels, and reaches what they depend on; its bin folder."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-index", *wheels], check=True)
    # a line of a .pth is a folder whose own .pth files count for nothing: no editable checkout
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{DEPENDENCIES}\n")
    return folder / "bin"


def ran(installed, folder, *words):
    environment = {**os.environ, "PATH": f"{installed}:{os.environ['PATH']}", "PYTHONPATH": ""}
    return subprocess.run(
        [installed / "scaling", *words], cwd=folder, env=environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


def test_the_wheel_holds_the_workflow_its_tables_its_page_and_its_studies(wheels):
    (wheel,) = [path for path in wheels if path.name.startswith("training_scaling")]
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("workflow/rules", "workflow/new", "reports", "config"):
        files = [path for path in (PROJECT / folder).rglob("*") if path.is_file()]
        shipped = {f"scaling/shipped/{path.relative_to(PROJECT)}" for path in files}
        assert shipped
        assert shipped <= names
    assert "scaling/shipped/Snakefile" in names
    assert not any(name.startswith(("tests/", "docs/")) for name in names)


@pytest.mark.ranks
def test_an_installed_wheel_measures_a_study_in_a_folder_of_its_own(installed, tmp_path):
    asked = ran(installed, tmp_path, "new", "sweeps")
    assert asked.returncode == 0, asked.stderr
    folder = tmp_path / "sweeps"
    where = subprocess.run(
        [installed / "python", "-c", "import scaling; print(scaling.__file__)"],
        cwd=folder, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert Path(where).is_relative_to(installed.parent)
    study = ran(installed, folder, "run", "first")
    assert study.returncode == 0, study.stdout + study.stderr
    results = folder / "results" / "first"
    assert [row["outcome"] for row in rows_of(results)] == ["ok"] * 4
    assert (results / "report.html").stat().st_size > 100_000


def test_a_published_study_can_be_predicted_from_an_installed_wheel(installed, tmp_path):
    answer = ran(
        installed, tmp_path, "recommend", "--model", "llama2_7b", "--cluster", "h100-80gb-dgx",
        "--gpus", "8",
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert "tokens/s" in answer.stdout
