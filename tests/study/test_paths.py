"""One module knows every path that a study leaves."""

import ast
import re
from pathlib import Path

import pytest

from scaling.study.paths import LogPaths, StudyPaths, rank_logs, retried, running_marker
from tests.conftest import PROJECT

ROW = StudyPaths(Path("results/quickstart")).row("*")
LEFT = StudyPaths(Path("results/quickstart"))
FILES = {path for name, path in vars(LEFT).items() if name != "folder"}
FOLDERS = {path for path in FILES if not path.suffix}
KEPT = {retried(ROW, 1), running_marker(ROW)}
NAMES = {path.name for path in FILES} | {path.parent.name for path in KEPT}
SPELLED = NAMES | {"logs", "ranks", "results", "snakemake.log", ".running"}


def sources():
    rooms = [*(PROJECT / "scaling").rglob("*.py"), *(PROJECT / "workflow/rules").glob("*.smk")]
    known = PROJECT / "scaling" / "study" / "paths.py"
    return sorted({*rooms, PROJECT / "Snakefile"} - {known})


def spelled(path):
    """The parts of paths a source spells: beside a `/`, in Path(), or a file's name."""
    if path.suffix != ".py":
        code = re.sub(r"#.*", "", path.read_text())
        return {part for text in re.findall(r"\"([^\" ]+)\"", code) for part in text.split("/")}
    tree = ast.parse(path.read_text())
    parts = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            parts |= {one.value for one in (node.left, node.right) if isinstance(one, ast.Constant)}
        elif isinstance(node, ast.Call) and getattr(node.func, "id", None) == "Path":
            parts |= {one.value for one in node.args if isinstance(one, ast.Constant)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            parts |= {node.value} if "." in node.value else set()
            parts |= {part for part in node.value.split("/")[:-1] if " " not in node.value}
    return parts


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PROJECT)))
def test_no_other_source_spells_a_path_of_a_study(path):
    assert not spelled(path) & SPELLED


def test_the_reference_shows_what_a_study_leaves():
    reference = (PROJECT / "docs" / "reference.md").read_text()
    (tree,) = re.findall(r"<!-- tree: results -->\n```\n(.*?)```", reference, re.DOTALL)
    root, *lines = tree.splitlines()
    assert root.split()[0] == f"{LEFT.folder}/"
    shown = {line.split()[0] for line in lines if line.startswith("  ")}
    logs = LogPaths(Path("logs/quickstart")).folder
    assert any(line.startswith(f"{logs}/ ") for line in lines)
    left = {f"{path.relative_to(LEFT.folder)}" for path in FILES - FOLDERS - {LEFT.plan_lock}}
    left |= {str(path.relative_to(LEFT.folder)) for path in (ROW, running_marker(ROW))}
    left |= {f"{path.parent.relative_to(LEFT.folder)}/" for path in KEPT - {running_marker(ROW)}}
    left |= {
        str(path.relative_to(LEFT.folder))
        for path in (LEFT.point("*"), LEFT.round("*"), LEFT.table("*"))
    }
    left |= {f"{LEFT.charts.name}/*.{{svg,png}}"}
    assert shown == left


def test_ranks_write_to_the_logs_of_their_study(tmp_path):
    usual = tmp_path / "results" / "one" / "rows" / "p.parquet"
    assert rank_logs("one", "p", usual) == tmp_path / "logs" / "one" / "ranks" / "p"


@pytest.mark.parametrize("place", ["results/other/rows/p.parquet", "results/one/rows/q.parquet"])
def test_a_row_that_lies_elsewhere_has_its_ranks_logs_beside_it(place, tmp_path):
    row = tmp_path / place
    assert rank_logs("one", "p", row) == row.with_suffix(".logs")


def test_ids_with_dots_keep_them():
    row = LEFT.row("llama-2.7b-g8")
    assert retried(row, 2).name == "llama-2.7b-g8.2.parquet"
    assert running_marker(row).name == "llama-2.7b-g8.running"
    assert rank_logs("other", "x", row).name == "llama-2.7b-g8.logs"
