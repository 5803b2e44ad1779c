"""The documents are true."""

import ast
import dataclasses
import importlib.metadata
import importlib.util
import itertools
import json
import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from typer.testing import CliRunner

import scaling
from scaling.cli.verbs import app
from scaling.layout.axes import AXES
from scaling.record.probe_row import Probe
from scaling.record.row import Row
from scaling.study import grid
from scaling.study.load import load_study
from scaling.study.schema import Axes
from tests.conftest import PROJECT
from tests.processes import ended

DOCUMENTS = sorted(
    PROJECT / name
    for name in ended(
        "git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md", cwd=PROJECT
    ).stdout.splitlines()
)
EXECUTOR = PROJECT / "workflow" / "executor"
SCALING, PLUGIN = (
    tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    for folder in (PROJECT, EXECUTOR)
)
EXTRAS = SCALING["optional-dependencies"]
README = (PROJECT / "README.md").read_text()
ARCHITECTURE = (PROJECT / "docs" / "architecture.md").read_text()
REFERENCE = (PROJECT / "docs" / "reference.md").read_text()


def named_in_project(path):
    return str(path.relative_to(PROJECT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=named_in_project)
def test_every_relative_link_leads_somewhere(document):
    for target in re.findall(r"\]\(([^)#]+)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=named_in_project)
def test_every_source_file_a_document_names_exists(document):
    rooms = "scaling|reports|benchmarks|tests|workflow|config"
    named = re.findall(rf"`((?:{rooms})/[\w./-]+)`", document.read_text())
    assert [path for path in named if not (PROJECT / path).exists()] == []


def test_the_tree_of_sources_is_the_real_one():
    (tree,) = re.findall(r"<!-- tree: sources -->\n```\n(.*?)```", README, re.DOTALL)
    for line in tree.splitlines():
        assert (PROJECT / line.split()[0]).exists(), line
    named = {line.split()[0].rstrip("/").split("/")[0] for line in tree.splitlines()}
    tracked = ended("git", "ls-files", cwd=PROJECT).stdout.splitlines()
    folders = {path.split("/")[0] for path in tracked if "/" in path} - {".ci", ".github"}
    assert folders <= named


def test_every_room_of_the_house_is_described():
    table = re.search(r"<!-- rooms: scaling -->\n(.*?)\n\n", ARCHITECTURE, re.DOTALL)[1]
    described = {row.split("|")[1].strip(" `") for row in table.splitlines()[2:]}
    rooms = {p.stem for p in (PROJECT / "scaling").glob("*.py")} - {"__init__"}
    rooms |= {p.name for p in (PROJECT / "scaling").iterdir() if (p / "__init__.py").exists()}
    assert described == rooms


@pytest.mark.parametrize(("part", "kind"), [("row", Row), ("probe", Probe)])
def test_the_columns_that_are_explained_exist(part, kind):
    table = REFERENCE.split(f"<!-- columns: {part} -->")[1].split("###")[0]
    named = {
        name
        for line in table.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    assert len(named) > 10
    assert named <= {field.name for field in dataclasses.fields(kind)}


def test_the_readmes_study_is_a_study(project):
    (text,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    path = project / "config" / "studies" / "my_study.yaml"
    path.write_text(text)
    planned = grid.expand_grid(load_study(path, project / "config"))
    sizes = {point.layout.world_size for point in planned.points}
    assert sizes == set(yaml.safe_load(text)["axes"]["world_size"])


def test_the_axes_the_readme_lists_are_the_axes_there_are():
    listed = re.search(r"Axes: `([^`]+)`", README)[1].split()
    assert set(listed) == set(Axes.model_fields)


def axes_table():
    """The axes of a study as a table, from the table of axes."""
    lines = ["| key | values | left out |", "|---|---|---|"]
    for axis in AXES.values():
        listed = [spelled(value) for value in axis.values or ["a count"]]
        listed += ["null"] * axis.optional
        listed += ["a program of `trainers.yaml`"] * axis.other_names
        lines.append(f"| `{axis.name}` | {', '.join(listed)} | {spelled(axis.default)} |")
    return "\n".join(lines)


def spelled(value):
    """A value as YAML has it."""
    return value if isinstance(value, str) else json.dumps(value)


def test_the_configs_readme_lists_every_axis_with_its_values(request):
    path = PROJECT / "config" / "README.md"
    start, end = "--update-golden -->\n", "\n<!-- end -->"
    before, rest = path.read_text().split(start)
    text = f"{before}{start}{axes_table()}{end}{rest.split(end.strip())[1]}"
    if request.config.getoption("--update-golden"):
        path.write_text(text)
    assert path.read_text() == text


def test_a_change_touches_about_as_many_files_as_is_said():
    counted = re.findall(r"`([\w-]+)`: (\d+)", (PROJECT / "docs" / "extending.md").read_text())
    assert len(counted) > 5
    for name, said in counted:
        sources = ("scaling/*.py", "scaling/*.yaml", "workflow", "reports")
        command = ["git", "grep", "-lw", "-e", name, "--", *sources]
        naming = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
        files = len(naming.stdout.splitlines())
        assert abs(files - int(said)) <= 2, f"{name}: {files} files\n{naming.stdout}"


def test_the_picture_of_the_tables_is_current():
    spec = importlib.util.spec_from_file_location("draw", PROJECT / "docs" / "draw_tables.py")
    draw = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(draw)
    assert draw.PICTURE.read_text(encoding="utf-8") == draw.picture(), "make docs draws it"


def test_the_version_is_one():
    citation = yaml.safe_load((PROJECT / "CITATION.cff").read_text())
    assert citation["version"] == scaling.__version__


def test_help_lists_every_verb_with_an_example():
    def helps(*words):
        asked = CliRunner().invoke(app, [*words, "--help"], prog_name="scaling")
        assert asked.exit_code == 0
        return asked.output

    listed = helps()
    verbs = re.findall(r"^│ (\w+) ", listed, re.MULTILINE)
    assert {"plan", "run", "measure", "status", "retry", "tabulate", "report"} <= set(verbs)
    for verb in verbs:
        assert f"scaling {verb}" in " ".join(helps(verb).split()), verb
        assert "Example:" in helps(verb), verb


def names_of(*requirements):
    """The packages of these lists of requirements."""
    lines = itertools.chain(*requirements)
    return {re.match(r"[\w-]+", line)[0].lower() for line in lines}


def test_all_requirements_are_pinned_once():
    torch = (PROJECT / "torch.lock").read_text().splitlines()[-1]
    with_torch = (PROJECT / "torch-cuda13.lock").read_text()
    assert f"{torch} \\\n" in with_torch
    lines = [*(PROJECT / "requirements.lock").read_text().splitlines(), *with_torch.splitlines()]
    pins = [line.split("==")[0].lower() for line in lines if re.match(r"\w", line)]
    assert len(pins) == len(set(pins))
    hashed = re.split(r"^(?=\w)", "\n".join(lines), flags=re.MULTILINE)[1:]
    assert len(hashed) == len(pins)
    assert all("--hash=sha256:" in one for one in hashed)
    assert {"setuptools", "hatchling"} <= set(pins)  # what is built with them is built anywhere
    needed = names_of(SCALING["dependencies"], EXTRAS["dev"], PLUGIN["dependencies"])
    assert needed - {PLUGIN["name"]} <= set(pins)  # the plugin lies in this repository


def test_every_third_party_import_is_named_in_pyproject():
    shipped = names_of(SCALING["dependencies"], EXTRAS["kernels"])
    allowed = {
        "scaling": shipped | {"transformers"},  # the program of `hf` runs where transformers is
        "workflow/executor": names_of(PLUGIN["dependencies"]),
        "tests": shipped | names_of(EXTRAS["dev"], PLUGIN["dependencies"]),
        "benchmarks": shipped | names_of(EXTRAS["dev"]),
    }
    own = {"scaling", "tests", "benchmarks", "snakemake_executor_plugin_submitit"}
    own |= {path.stem for path in (PROJECT / "benchmarks").glob("*.py")}  # run from their folder
    packages = importlib.metadata.packages_distributions()
    for folder, named in allowed.items():
        for path in (PROJECT / folder).rglob("*.py"):
            for module in imported(path) - own - sys.stdlib_module_names:
                known = packages.get(module, [module])
                found = {one.lower().replace("_", "-") for one in known}
                assert found & named, f"{path}: {module} is of {sorted(found)}"


def imported(path):
    """Top-level names of the modules a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module.split(".")[0])
    return found
