"""Hooks and forge run what `make check`, `make test` and .ci/run do."""

import itertools
import re
from pathlib import Path

from tests.conftest import PROJECT
from tests.processes import ended

TESTS = PROJECT / "tests"


def test_make_test_torch_tests_that_torch_beside_the_locks_other_packages():
    words = ["make", "--dry-run", "--always-make", "test-torch", "VERSION=2.12.0", "ARGS=-k one"]
    recipe = ended(*words, cwd=PROJECT, check=True).stdout
    venv = ".venv/torch-2.12.0"
    assert f'echo "torch==2.12.0" > {venv}.lock' in recipe
    installed = re.findall(
        rf"^(?:DS_BUILD_OPS=0 )?{venv}/bin/python -m pip .* (\S+)$", recipe, re.MULTILINE
    )
    assert installed == ["requirements.lock", f"{venv}.lock", "'.[dev]'"]
    assert f"{venv}/bin/python -m pytest tests/train tests/check -k one\n" in recipe


def test_make_test_runs_every_test_once():
    words = ["make", "--dry-run", "--assume-old=.venv/installed", "test", "ARGS="]
    recipe = ended(*words, cwd=PROJECT, check=True).stdout
    asked = re.findall(r'pytest -m "([^"]+)"([^;&]*)', recipe)
    # two parts ask for the same marks, in folders that the other leaves out
    (one, named), (other, left_out) = asked[-2:]
    assert one == other
    folders = named.split()
    assert all((PROJECT / folder).is_dir() for folder in folders)
    assert left_out.split() == [f"--ignore={folder}" for folder in folders]
    parts = [compile(words, "Makefile", "eval") for words, _ in asked[:-1]]
    for given in itertools.product((False, True), repeat=3):
        marks = dict(zip(("ranks", "slurm", "snakemake"), given, strict=True))
        assert sum(eval(part, marks.copy()) for part in parts) == 1, marks
    texts = {path: path.read_text() for path in TESTS.rglob("*.py") if path != Path(__file__)}
    marked = {
        mark: {path for path, text in texts.items() if f"mark.{mark}" in text}
        for mark in ("ranks", "slurm", "snakemake")
    }
    assert {path.parent for path in marked["slurm"]} == {TESTS / "slurm"}
    # two parts look for their mark's name in test files only, and find it wherever it is
    assert set(re.findall(r"\(marked (\w+)\)", recipe)) == {"ranks", "snakemake"}
    for path in marked["ranks"] | marked["snakemake"]:
        assert path.name.startswith("test_")
    # that of ranks leaves out files of the other parts, where no mark of ranks stands alone
    assert 'grep -L "mark\\.slurm\\|mark\\.snakemake" $(marked ranks)' in recipe
    for path in marked["ranks"] & (marked["slurm"] | marked["snakemake"]):
        alone = r"mark\.ranks(?!,?\s+@?pytest\.mark\.(?:slurm|snakemake))"
        assert not re.search(alone, texts[path]), path
    assert not any("add_marker" in text for text in texts.values())
