"""The installed package works alone: wheels, without this checkout, in a folder of one's own."""

import os
import re
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.processes import ended, write_program
from tests.ran import rows_of

pytestmark = pytest.mark.slow

DEPENDENCIES = sysconfig.get_path("purelib")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The wheels of the project and of its executor plugin."""
    folder = tmp_path_factory.mktemp("wheels")
    for source in (PROJECT / "workflow" / "executor", PROJECT):
        built = ("hatchling", "build", "-t", "wheel", "-d", folder)
        ended(sys.executable, "-m", *built, cwd=source, check=True)
    return sorted(folder.glob("*.whl"))


def environment(folder, wheels):
    """An environment that holds these wheels, and reaches what they depend on; its bin folder."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip = ("pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", *wheels)
    ended(sys.executable, "-m", *pip, check=True)
    # a line of a .pth is a folder whose own .pth files count for nothing: no editable checkout
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{DEPENDENCIES}\n")
    return folder / "bin"


@pytest.fixture(scope="module")
def installed(wheels, tmp_path_factory):
    return environment(tmp_path_factory.mktemp("environment"), wheels)


def ran(installed, folder, *words):
    variables = {**os.environ, "PATH": f"{installed}:{os.environ['PATH']}", "PYTHONPATH": ""}
    return ended(installed / "scaling", *words, cwd=folder, env=variables)


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
@pytest.mark.snakemake
def test_an_installed_wheel_measures_a_study_in_a_folder_of_its_own(installed, tmp_path):
    asked = ran(installed, tmp_path, "new", "sweeps")
    assert asked.returncode == 0, asked.stderr
    folder = tmp_path / "sweeps"
    where = ended(installed / "python", "-c", "import scaling; print(scaling.__file__)", cwd=folder)
    assert Path(where.stdout).is_relative_to(installed.parent)
    study = ran(installed, folder, "run", "first")
    assert study.returncode == 0, study.stdout + study.stderr
    results = folder / "results" / "first"
    assert [row["outcome"] for row in rows_of(results)] == ["ok"] * 4
    assert (results / "report.html").stat().st_size > 50_000


def test_a_published_study_can_be_predicted_from_an_installed_wheel(installed, tmp_path):
    answer = ran(
        installed, tmp_path, "recommend", "--model", "llama2_7b", "--cluster", "h100-80gb-dgx",
        "--gpus", "8", "--no-rehearse",
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert "tokens/s" in answer.stdout


@pytest.mark.snakemake
def test_the_executor_alone_runs_a_workflow_of_others(wheels, tmp_path_factory, tmp_path):
    (plugin,) = [path for path in wheels if path.name.startswith("snakemake_executor_plugin")]
    python = environment(tmp_path_factory.mktemp("plugin_alone"), [plugin]) / "python"
    assert ended(python, "-c", "import scaling", cwd=tmp_path).returncode == 1
    (tmp_path / "Snakefile").write_text(
        'rule all:\n    input: expand("out/{n}.txt", n=range(10))\n\n'
        'rule one:\n    output: "out/{n}.txt"\n    resources: runtime=5\n'
        '    shell: "echo {wildcards.n} > {output}"\n'
    )
    (tmp_path / "bin").mkdir()
    run_here = 'SLURM_JOB_ID=$$ bash "$1" > /dev/null 2>&1 &\necho Submitted batch job $$'
    for name, lines in {"sbatch": run_here, "squeue": "", "scancel": "", "sinfo": ""}.items():
        write_program(tmp_path / "bin" / name, f"#!/bin/sh\n{lines}\n")
    variables = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    ran = ended(
        *(python, "-m", "snakemake", "--executor", "submitit", "--submitit-pack", "5"),
        *("--jobs", "10", "--seconds-between-status-checks", "1", "--latency-wait", "1"),
        *("--default-resources", "mem=None", "disk=None"), cwd=tmp_path, env=variables,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    written = [(tmp_path / "out" / f"{n}.txt").read_text().strip() for n in range(10)]
    assert written == [str(n) for n in range(10)]


@pytest.mark.parametrize("recipe", ["Dockerfile", "apptainer.def"])
def test_a_container_is_made_of_files_that_are_here_and_of_the_lock(recipe):
    text = (PROJECT / recipe).read_text()
    copied = re.findall(r"^COPY (.+) \S+$|^ {4}(\S+) /opt/scaling/\S+$", text, re.MULTILINE)
    names = {name for pair in copied for name in (pair[0] or pair[1]).split()}
    assert {"requirements.lock", "torch-cuda13.lock", "pyproject.toml", "Snakefile"} <= names
    assert {"scaling", "workflow", "config", "reports"} <= names
    assert all((PROJECT / name).exists() for name in names), names
    for lock in ("requirements.lock", "torch-cuda13.lock"):
        assert f"--require-hashes --no-deps -r {lock}" in text
    assert "pip install --no-build-isolation --no-deps ./workflow/executor ." in text
    assert "liger-kernel==" in (PROJECT / "torch-cuda13.lock").read_text()


def test_the_documentation_builds_as_a_site_without_a_broken_link(tmp_path):
    words = ("mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path)
    built = ended(sys.executable, "-m", *words, cwd=PROJECT)
    assert built.returncode == 0, built.stderr
    for document in (PROJECT / "docs").glob("*.md"):
        assert (tmp_path / document.stem / "index.html").exists(), document
