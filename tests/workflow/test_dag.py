"""Snakemake's plan, without running it; paths of any kind reach the verbs as they are."""

import contextlib
import json
import os
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from scaling.run import plan_writer, planning
from scaling.study import grid
from scaling.study.load import load_study
from tests.conftest import PROJECT, copy_project
from tests.plans import fitting_plan
from tests.processes import ended, write_program
from tests.warm import warm_python

pytestmark = pytest.mark.snakemake


def snakemake(project, *options, python=None):
    command = (python or warm_python(), "-m", "snakemake", "--profile", "config/profiles/local")
    return ended(*command, *options, cwd=project)


def planned_jobs(project, study="quickstart"):
    """Rule -> number of jobs a dry run would start."""
    asked = snakemake(project, "--dry-run", "--config", f"study={study}")
    said = asked.stdout + asked.stderr
    assert asked.returncode == 0, said
    if "Nothing to be done" in said:
        return {}
    table = said.split("Job stats:")[-1].strip().split("\n\n")[0]
    return {rule: int(count) for rule, count in map(str.split, table.splitlines()[2:])}


@pytest.mark.parametrize("study", ["engines_small", "zero_stages"])  # measured, only predicted
def test_a_study_has_a_dag_with_one_job_per_point_it_measures(study, project):
    found = load_study(PROJECT / "config" / "studies" / f"{study}.yaml", PROJECT / "config")
    points = fitting_plan(found).points if found.mode == "measure" else ()
    jobs = planned_jobs(project, study)
    assert jobs.get("measure", 0) == len(points)
    assert {"tabulate", "report"} <= set(jobs)


def plan(project, study="quickstart"):
    """The files of `scaling plan` in that checkout, by this process."""
    with contextlib.chdir(project):
        plan_writer.write_plan(planning.plan_study(study))


def grid_of(project, study="quickstart"):
    return grid.expand_grid(
        load_study(project / "config" / "studies" / f"{study}.yaml", project / "config")
    )


def pretend_it_ran(project, study="quickstart"):
    """Lay down what a finished study leaves, in the order it would."""
    plan(project, study)
    results, found = project / "results" / study, grid_of(project, study)
    stamp = (results / "points.parquet").stat().st_mtime - 60
    made_from = (project / "reports").rglob("*.*")  # however new this checkout is
    for path in (*results.glob("*.*"), *made_from):
        os.utime(path, (stamp, stamp))
    rows = [f"rows/{point.point_id}.parquet" for point in found.points]
    tables = [f"tables/{sql.stem}.parquet" for sql in (project / "reports/sql").glob("*.sql")]
    for age, group in enumerate((rows, tables, ["report.html"]), start=1):
        for path in (results / name for name in group):
            path.parent.mkdir(exist_ok=True)
            path.touch()
            os.utime(path, (stamp + age, stamp + age))
    return found


def edit(project, change):
    """Change the quickstart."""
    path = project / "config" / "studies" / "quickstart.yaml"
    content = yaml.safe_load(path.read_text())
    change(content)
    path.write_text(yaml.safe_dump(content))


FEW = {"layouts": [{"zero_stage": [1, 3]}]}


def test_one_more_world_size_plans_only_the_new_points_and_the_report(project):
    edit(project, lambda study: study.update(FEW))
    before = pretend_it_ran(project)
    edit(project, lambda study: study["axes"]["world_size"].append(8))
    new = {p.point_id for p in grid_of(project).points} - {p.point_id for p in before.points}
    assert new
    jobs = planned_jobs(project)
    assert jobs["measure"] == len(new)
    assert jobs["tabulate"] == jobs["report"] == 1


def test_new_points_add_probes_and_new_probes_repeat_no_point(project):
    edit(project, lambda study: study.update({**FEW, "probe": True}))
    found = pretend_it_ran(project)
    results = project / "results" / "quickstart"
    # a study that was measured without probes is left alone
    assert planned_jobs(project) == {}
    (results / "rows" / f"{found.points[0].point_id}.parquet").unlink()
    jobs = planned_jobs(project)
    assert (jobs["probe"], jobs["measure"]) == (1, 1)
    # a probe of an earlier plan that ended unwatched is made anew
    (results / "probes.parquet").touch()
    planned = json.loads((results / "plan.json").read_text())["probe_asked"]
    hosts = [json.dumps({"asked": asked, "hosts": {}}) for asked in (planned, "of another plan")]
    for text, probes in zip(("", *hosts), (None, None, 1), strict=True):
        (results / "hosts.json").write_text(text)
        jobs = planned_jobs(project)
        assert (jobs.get("probe"), jobs["measure"]) == (probes, 1)


def two_nodes_asked(project):
    """The output of a dry run of one point on two nodes of a cluster of the shipped ones."""
    axes = {
        "model": "llama2_7b", "cluster": "h100-80gb-dgx", "world_size": 16, "zero_stage": 1,
        "global_batch_size": 64, "seq_length": 4096, "tp": 2,
    }  # fmt: skip
    study = {"title": "Two", "kind": "strong", "axes": axes, "measure": {"time_limit_s": 300.0}}
    (project / "config" / "studies" / "two_nodes.yaml").write_text(yaml.safe_dump(study))
    asked = snakemake(project, "--dry-run", "--config", "study=two_nodes")
    assert asked.returncode == 0, asked.stdout + asked.stderr
    return asked.stdout + asked.stderr


def test_snakemakes_linter_finds_nothing(project):
    asked = snakemake(project, "--lint")
    assert asked.returncode == 0, asked.stdout + asked.stderr


def test_a_rule_calls_the_scaling_of_its_container_where_one_is_asked_for(
    project, tmp_path, monkeypatch
):
    (tmp_path / "bin").mkdir()
    write_program(tmp_path / "bin/apptainer", "#!/bin/sh\necho apptainer version 1.3.0\n")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    words = ("--dry-run", "--printshellcmds", "--config", "study=quickstart")

    apptainer = ("--software-deployment-method", "apptainer")
    inside = snakemake(project, *apptainer, *words, "implied=false").stdout
    outside = snakemake(project, *words).stdout

    assert "Shell command: scaling measure" in inside
    assert " --no-implied --excluded=" in inside
    assert f"{warm_python()} -m scaling measure" in outside
    assert "--no-implied" not in outside


def test_what_a_smaller_micro_batch_rules_out_runs_where_it_is_asked_for(project):
    words = ("--dry-run", "--printshellcmds", "--config", "study=quickstart", "implied=false")
    assert " --no-implied --excluded=" in snakemake(project, *words).stdout


# of folders of a checkout, a study and an interpreter; leaves a file if a shell runs it
NAME = "it's größe; with space $(touch READ) 模型"


@pytest.fixture
def checkout(tmp_path):
    """A checkout, a study and an interpreter, each in a folder of that name."""
    folder = tmp_path / NAME
    folder.mkdir()
    root = copy_project(folder)
    (root / NAME).mkdir()
    (root / NAME / "own.yaml").write_text((root / "config/studies/zero_stages.yaml").read_text())
    (folder / "venv").symlink_to(Path(sys.executable).parent.parent)
    return root, f"{NAME}/own.yaml", folder / "venv/bin/python"


def test_every_rule_quotes_what_it_is_given(checkout):
    root, study, python = checkout
    asked = ("--config", f"study={study}", "mode=measure", "--dry-run", "--printshellcmds")
    ran = snakemake(root, *asked, python=python)
    assert ran.returncode == 0, ran.stderr
    verbs = {}
    for line in (ran.stdout + ran.stderr).splitlines():
        if " -m scaling " in line:
            words = shlex.split(line.partition("Shell command:")[2])
            assert words[:3] == [str(python), "-m", "scaling"]
            verbs[words[3]] = words
    assert {"probe", "measure", "calibrate", "predict", "tabulate", "report"} <= set(verbs)
    assert not list(root.rglob("READ"))


def test_a_study_in_a_folder_of_such_a_name_is_planned_and_predicted(checkout):
    root, study, python = checkout
    ended(python, "-m", "scaling", "plan", study, cwd=root, check=True)
    wanted = ("--config", f"study={study}", "--", "results/own/predictions.parquet")
    ran = snakemake(root, *wanted, python=python)
    assert ran.returncode == 0, ran.stderr
    assert (root / "results/own/predictions.parquet").exists()
    assert not list(root.rglob("READ"))
