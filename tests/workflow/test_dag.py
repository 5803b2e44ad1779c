"""Snakemake's plan, without running it."""

import contextlib
import json
import os
import time

import pytest
import yaml

from scaling.run import plan_writer, planning
from scaling.study import grid
from scaling.study.load import load_study
from tests.conftest import PROJECT
from tests.plans import fitting_plan
from tests.processes import ended, write_program
from tests.warm import warm_python

pytestmark = pytest.mark.snakemake


def snakemake(project, *options):
    profile = ["--profile", "config/profiles/local"]
    return ended(warm_python(), "-m", "snakemake", *profile, *options, cwd=project)


def planned_jobs(project, study):
    """Rule -> number of jobs a dry run would start."""
    asked = snakemake(project, "--dry-run", "--config", f"study={study}")
    assert asked.returncode == 0, asked.stdout + asked.stderr
    if "Nothing to be done" in asked.stdout + asked.stderr:
        return {}
    lines = (asked.stdout + asked.stderr).split("Job stats:")[-1].splitlines()[3:]
    counts = {}
    for line in lines:
        if not line.strip():
            break
        rule, count = line.split()
        counts[rule] = int(count)
    return counts


@pytest.mark.parametrize("study", ["engines_small", "zero_stages"])  # measured, only predicted
def test_a_study_has_a_dag_with_one_job_per_point_it_measures(study, project):
    found = load_study(PROJECT / "config" / "studies" / f"{study}.yaml", PROJECT / "config")
    points = fitting_plan(found).points if found.mode == "measure" else ()
    jobs = planned_jobs(project, study)
    assert jobs.get("measure", 0) == len(points)
    assert {"tabulate", "report"} <= set(jobs)


def plan(project, study):
    """The files of `scaling plan` in that checkout, by this process."""
    with contextlib.chdir(project):
        plan_writer.write_plan(planning.plan_study(study))


def pretend_it_ran(project, study):
    """Lay down what a finished study leaves, in the order it would."""
    plan(project, study)
    results = project / "results" / study
    found = grid.expand_grid(
        load_study(project / "config" / "studies" / f"{study}.yaml", project / "config")
    )
    stamp = (results / "points.parquet").stat().st_mtime - 60
    made_from = (project / "reports").rglob("*.*")  # however new this checkout is
    for path in (*results.glob("*.*"), *made_from):
        os.utime(path, (stamp, stamp))
    (results / "rows").mkdir(exist_ok=True)
    files = [results / "rows" / f"{point.point_id}.parquet" for point in found.points]
    (results / "tables").mkdir(exist_ok=True)
    tables = [
        results / "tables" / f"{sql.stem}.parquet"
        for sql in (project / "reports" / "sql").glob("*.sql")
    ]
    for age, group in enumerate((files, tables, [results / "report.html"]), start=1):
        for path in group:
            path.touch()
            os.utime(path, (stamp + age, stamp + age))
    return found


def edit(project, study, change):
    path = project / "config" / "studies" / f"{study}.yaml"
    content = yaml.safe_load(path.read_text())
    change(content)
    path.write_text(yaml.safe_dump(content))


def test_one_more_world_size_plans_only_the_new_points_and_the_report(project):
    edit(project, "quickstart", lambda study: study.update(layouts=[{"zero_stage": [1, 3]}]))
    before = pretend_it_ran(project, "quickstart")
    edit(project, "quickstart", lambda study: study["axes"]["world_size"].append(8))
    path = project / "config" / "studies" / "quickstart.yaml"
    after = grid.expand_grid(load_study(path, project / "config"))
    new = {p.point_id for p in after.points} - {p.point_id for p in before.points}
    assert new
    jobs = planned_jobs(project, "quickstart")
    assert jobs["measure"] == len(new)
    assert jobs["tabulate"] == jobs["report"] == 1


def touch_probes(project, study, after):
    """Lay down the probes of a study, as old as its rows, and what Snakemake knows of them."""
    results = project / "results" / study
    for name in ("probes.parquet", "hosts.json"):
        (results / name).touch()
        os.utime(results / name, (after, after))


def test_new_points_add_probes_and_new_probes_repeat_no_point(project):
    probed = {"layouts": [{"zero_stage": [1, 3]}], "probe": True}
    edit(project, "quickstart", lambda study: study.update(probed))
    found = pretend_it_ran(project, "quickstart")
    # a study that was measured without probes is left alone
    assert planned_jobs(project, "quickstart") == {}
    row = project / "results" / "quickstart" / "rows" / f"{found.points[0].point_id}.parquet"
    row.unlink()
    jobs = planned_jobs(project, "quickstart")
    assert (jobs["probe"], jobs["measure"]) == (1, 1)
    touch_probes(project, "quickstart", time.time())
    jobs = planned_jobs(project, "quickstart")
    assert (jobs.get("probe"), jobs["measure"]) == (None, 1)


def test_a_probe_of_an_earlier_plan_that_ended_unwatched_is_made_anew(project):
    probed = {"layouts": [{"zero_stage": [1, 3]}], "probe": True}
    edit(project, "quickstart", lambda study: study.update(probed))
    found = pretend_it_ran(project, "quickstart")
    results = project / "results" / "quickstart"
    (results / "rows" / f"{found.points[0].point_id}.parquet").unlink()
    planned = json.loads((results / "plan.json").read_text())["probe_asked"]
    for asked, probes in ((planned, None), ("of another plan", 1)):
        touch_probes(project, "quickstart", time.time() + 60)
        (results / "hosts.json").write_text(json.dumps({"asked": asked, "hosts": {}}))
        jobs = planned_jobs(project, "quickstart")
        assert (jobs.get("probe"), jobs["measure"]) == (probes, 1)


def two_nodes_asked(project):
    """The output of a dry run of one point on two nodes of a cluster of the shipped ones."""
    study = {
        "title": "Two nodes",
        "kind": "strong",
        "axes": {
            "model": "llama2_7b",
            "cluster": "h100-80gb-dgx",
            "world_size": 16,
            "global_batch_size": 64,
            "seq_length": 4096,
            "tp": 2,
            "zero_stage": 1,
        },
        "measure": {"time_limit_s": 300.0},
    }
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
