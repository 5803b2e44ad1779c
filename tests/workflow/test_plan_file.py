"""A plan is stale by what its files say, whoever wrote it last."""

import json
import os
import subprocess
import sys

import pytest
import typer
import yaml

from scaling.cli.verbs import app
from scaling.errors import InputError
from scaling.study import inputs, paths, plan_file
from tests.conftest import PROJECT
from tests.processes import ended, largest_file
from tests.workflow.test_dag import FEW, edit, plan, planned_jobs, pretend_it_ran, snakemake

pytestmark = pytest.mark.snakemake


@pytest.fixture
def planned(project, monkeypatch):
    """The quickstart, planned on the command line; monkeypatched into its checkout."""
    edit(project, lambda study: study.update(FEW))
    monkeypatch.chdir(project)
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    plan(project)
    return project


def plan_of(project):
    return json.loads((project / "results" / "quickstart" / "plan.json").read_text())


def times_of(project):
    results = project / "results" / "quickstart"
    return {path: path.stat().st_mtime_ns for path in results.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "change",
    [
        lambda study: study.update(title="Another question"),
        lambda study: study.update(report={"knee_share": 0.5}),
        lambda study: study["layouts"].append({"world_size": 3, "tp": 3}),  # a refusal
    ],
    ids=["title", "knee_share", "refusal"],
)
def test_report_only_changes_measure_nothing(planned, change):
    pretend_it_ran(planned)
    assert "measure" not in planned_jobs(planned)
    edit(planned, change)
    plan(planned)
    jobs = planned_jobs(planned)
    assert "measure" not in jobs
    assert jobs["tabulate"] == jobs["report"] == 1


def test_a_plan_that_fits_is_read_and_not_made_again(planned, monkeypatch):
    before = times_of(planned)
    monkeypatch.setattr(subprocess, "run", None)
    found = plan_file.current_plan("quickstart")
    assert set(found.points) == set(plan_of(planned)["points"])
    assert times_of(planned) == before


@pytest.mark.parametrize("damage", ["half", "gone"])
def test_broken_or_missing_files_of_a_plan_are_written_anew(planned, damage):
    results = planned / "results" / "quickstart"
    names = ["points.parquet", "refused.parquet", "study.json", "plan.json"]
    whole = {name: (results / name).read_bytes() for name in names}
    for name in names:
        for damaged in (name, "plan.json"):  # each alone makes the plan stale
            if damage == "half":
                (results / damaged).write_bytes(whole[damaged][: len(whole[damaged]) // 2])
            else:
                (results / damaged).unlink(missing_ok=True)
            assert plan_file.read_plan(results, made_from()) is None
        plan(planned)
        assert {name: (results / name).read_bytes() for name in names} == whole
    assert plan_file.read_plan(results, made_from()) is not None


def made_from():
    path = inputs.study_path("quickstart")
    return inputs.inputs_digest(path, paths.CONFIG, mode=None, cluster=None)


@pytest.mark.parametrize(
    ("key", "value"), [("files", None), ("nodes", "x"), ("points", []), ("probe", {"nodes": 1})]
)
def test_a_plan_with_a_value_of_another_type_is_none(planned, key, value):
    path = planned / "results" / "quickstart" / "plan.json"
    whole = path.read_text()
    path.write_text(json.dumps(json.loads(whole) | {key: value}))
    assert plan_file.read_plan(path.parent, made_from()) is None
    path.write_text("[" * 200_000)
    assert plan_file.read_plan(path.parent, made_from()) is None
    path.write_text(whole)
    assert plan_file.read_plan(path.parent, made_from()) is not None


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"sutdy": "zero_stages"}, "--config sutdy=: did you mean 'study'"),
        ({"name": "zero_stages"}, "--config name=: allowed: cluster, implied, mode, study"),
        ({"study": "s", "Mode": "predict"}, "--config Mode=: did you mean 'mode'"),
        ({"study": "s", "implied": 0}, "--config implied=0: must be true or false"),
    ],
)
def test_a_misspelt_configuration_runs_no_other_study(config, sentence):
    with pytest.raises(InputError, match=sentence):
        inputs.asked_of(config)
    of_another_workflow = {"study": "s", "samples": 3, "mode": "predict"}
    assert inputs.asked_of(of_another_workflow) == ("s", {"mode": "predict"}, True)


def test_planning_again_touches_nothing_and_two_plans_agree(planned):
    before = times_of(planned)
    command = [sys.executable, "-m", "scaling", "plan", "quickstart"]
    edit(planned, lambda study: study["measure"].update(repeats=2))
    both = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [one.wait() for one in both] == [0, 0]
    made = plan_file.read_plan(planned / "results" / "quickstart", made_from())
    assert made is not None
    assert len(made.points) == 2 * len([path for path in before if path.parent.name == "points"])
    edit(planned, lambda study: study["measure"].update(repeats=1))
    plan(planned)
    after = times_of(planned)
    old_points = [path for path in before if path.parent.name == "points"]
    assert {path: after[path] for path in old_points} == {p: before[p] for p in old_points}


@pytest.mark.parametrize("file", ["models.yaml", "clusters.yaml"])
def test_a_plan_is_stale_when_a_file_it_follows_from_says_something_else(planned, file):
    path = inputs.study_path("quickstart")
    facts = {"mode": None, "cluster": None}
    before = inputs.inputs_digest(path, paths.CONFIG, **facts)
    os.utime(planned / "config" / file)
    assert inputs.inputs_digest(path, paths.CONFIG, **facts) == before
    (planned / "config" / file).write_text((planned / "config" / file).read_text() + "\n# more\n")
    assert inputs.inputs_digest(path, paths.CONFIG, **facts) != before
    assert inputs.inputs_digest(path, paths.CONFIG, mode="predict", cluster=None) != before


def test_another_file_of_the_same_name_is_refused_with_a_way_out(planned, tmp_path):
    other = tmp_path / "quickstart.yaml"
    other.write_text((planned / "config/studies/quickstart.yaml").read_text())
    points = times_of(planned)
    for verb in ("plan", "run", "status", "retry"):
        with pytest.raises(InputError) as told:
            typer.main.get_command(app)([verb, str(other)], standalone_mode=False)
        assert "results/quickstart: holds the study config/studies/quickstart.yaml" in str(told)
        assert "give one of the files another name, or move results/quickstart away" in str(told)
    parsed = snakemake(planned, "--dry-run", "--config", f"study={other}")
    assert parsed.returncode == 2
    assert "holds the study" in parsed.stderr
    assert times_of(planned) == points


def test_an_id_that_was_measured_never_comes_to_mean_another_point(planned):
    clusters = planned / "config" / "clusters.yaml"
    content = yaml.safe_load(clusters.read_text())
    content["local"]["gpus_per_node"] *= 2
    clusters.write_text(yaml.safe_dump(content))
    plan(planned)  # nothing was measured: only the points' files change
    rows = planned / "results" / "quickstart" / "rows"
    rows.mkdir()
    point = next(iter(plan_of(planned)["points"]))
    (rows / f"{point}.parquet").touch()
    edit(planned, lambda study: study["measure"].update(time_limit_s=77.0))
    plan(planned)  # another limit is the same point
    content["local"]["gpus_per_node"] *= 2
    clusters.write_text(yaml.safe_dump(content))
    with pytest.raises(InputError, match=r"was measured with gpus_per_node=.* give the cluster an"):
        plan(planned)


def test_a_full_disk_is_one_sentence_instead_of_snakemakes_traceback(planned):
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--config", "study=quickstart"]
    with largest_file(500_000):
        done = ended(*command, cwd=planned)
    assert done.returncode == 2
    assert done.stderr.endswith("of-this-run: cannot be written: File too large\n")
