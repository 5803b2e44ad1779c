"""After any planning, editing, running, retrying, reporting and killing: the end is the same.

Snakemake is real; measuring, tabulating and reporting are stand-ins that say what they were made
from, so that a stale table is seen.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
import yaml

from scaling.run import plan_writer, planning, retry
from scaling.study.load import load_study
from scaling.study.study import study_info_json
from tests.conftest import PROJECT
from tests.warm import warm_python
from tests.workflow.conftest import stand_in

pytestmark = [pytest.mark.snakemake, pytest.mark.timeout(600)]

# one in three layouts fails, whichever attempt
MEASURE = """
import json, sys
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
point = json.loads(Path(sys.argv[1]).read_text())
row = Path(sys.argv[2])
outcome = "oom" if point["layout"]["zero_stage"] == 2 else "ok"
table = pa.table({"point_id": [point["point_id"]], "outcome": [outcome], "attempt": [1]})
row.parent.mkdir(parents=True, exist_ok=True)
pq.write_table(table, row.with_suffix(".part"))
row.with_suffix(".part").replace(row)
"""
# tables of the study: what it says, what it asks for, what was measured of that
TABULATE = """
import json, sys
from pathlib import Path
import pyarrow.parquet as pq
study = Path(sys.argv[1])
points = sorted(pq.read_table(study / "points.parquet")["point_id"].to_pylist())
rows = {path.stem for path in (study / "rows").glob("*.parquet")}
said = {
    "about": json.loads((study / "study.json").read_text()),
    "points": points,
    "refused": sorted(pq.read_table(study / "refused.parquet")["reason"].to_pylist()),
    "measured": [point for point in points if point in rows],
    "prices": Path("config/clusters.yaml").read_text().count("usd_per_gpu_hour: 7"),
}
for sql in Path("reports/sql").glob("*.sql"):
    (study / "tables" / f"{sql.stem}.parquet").write_text(json.dumps(said))
"""
REPORT = """
import sys
from pathlib import Path
study = Path(sys.argv[1])
(study / "report.html").write_text(next((study / "tables").glob("*.parquet")).read_text())
"""
STUDY = {
    "title": "First",
    "kind": "strong",
    "axes": {
        "model": "tiny", "cluster": "local", "world_size": [1], "global_batch_size": 8,
        "seq_length": 32, "precision": "fp32",
    },
    "layouts": [{"zero_stage": [1]}],
}  # fmt: skip
EDITS = {
    "title": lambda s, rng: s.update(title=f"Title {rng.randrange(100)}"),
    "knee": lambda s, rng: s.update(report={"knee_share": rng.choice([0.5, 0.6, 0.75])}),
    "repeats": lambda s, rng: s.update(measure={"repeats": rng.choice([1, 2])}),
    "limit": lambda s, rng: s.setdefault("measure", {}).update(
        time_limit_s=rng.choice([60.0, 90.0])
    ),
    "sizes": lambda s, rng: s["axes"].update(world_size=rng.choice([[1], [2], [1, 2]])),
    "stages": lambda s, rng: s.update(layouts=[{"zero_stage": rng.choice([[1], [1, 2], [3]])}]),
    "refusals": lambda s, rng: s["layouts"].append({"world_size": 3, "tp": rng.choice([3, 5])}),
}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    root = tmp_path / "project"
    (root / "config" / "studies").mkdir(parents=True)
    for name in ("models.yaml", "clusters.yaml", "profiles"):
        source = PROJECT / "config" / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, root / "config" / name)
    shutil.copytree(PROJECT / "workflow" / "rules", root / "workflow" / "rules")
    shutil.copy(PROJECT / "Snakefile", root)
    for name in ("sql", "page", "captions"):
        (root / "reports" / name).mkdir(parents=True)
    (root / "reports" / "sql" / "one.sql").write_text("select 1")
    stand_in(root, measure=MEASURE, tabulate=TABULATE, report=REPORT)
    monkeypatch.chdir(root)
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    write(root, STUDY)
    return root


def write(root, study):
    (root / "config" / "studies" / "one.yaml").write_text(yaml.safe_dump(study))


def snakemake(*options, python=sys.executable, **how):
    local = ["--profile", "config/profiles/local", "--quiet", "all", *options]
    command = [python, "-m", "snakemake", *local, "--config", "study=one"]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **how
    )


def run(*options):
    process = snakemake(*options, python=warm_python())
    said, _ = process.communicate()
    assert process.returncode == 0, said


def kill(rng):
    """Start a run and kill it and all it started, sooner or later."""
    process = snakemake(start_new_session=True)
    try:
        process.communicate(timeout=rng.uniform(0.2, 3.0))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    run("--unlock")


def fresh(root):
    """The state of a fresh folder, by the pure functions."""
    made = planning.plan_study("one")
    ids = sorted(point.point_id for point in made.plan.points)
    return {
        "about": json.loads(study_info_json(load_study("one"))),
        "points": ids,
        "refused": sorted(refusal.reason for refusal in made.plan.refusals),
        "measured": ids,
        "prices": (root / "config/clusters.yaml").read_text().count("usd_per_gpu_hour: 7"),
    }


def set_price(root, usd):
    path = root / "config" / "clusters.yaml"
    clusters = yaml.safe_load(path.read_text())
    clusters["local"]["usd_per_gpu_hour"] = usd
    path.write_text(yaml.safe_dump(clusters))


def rows_of(root):
    rows = (root / "results" / "one" / "rows").glob("*.parquet")
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in rows}


@pytest.mark.parametrize("seed", range(2))
def test_any_sequence_ends_as_a_fresh_folder_would(seed, checkout):
    rng = random.Random(seed)
    study = yaml.safe_load(yaml.safe_dump(STUDY))
    results = checkout / "results" / "one"
    done = []
    for step in range(7):
        before = rows_of(checkout)
        action = rng.choice(["plan", "edit", "edit", "run", "retry", "report", "price", "kill"])
        if action == "plan":
            plan_writer.write_plan(planning.plan_study("one"))
        elif action == "edit":
            name = rng.choice(list(EDITS))
            EDITS[name](study, rng)
            write(checkout, study)
            action = f"edit {name}"
        elif action == "run":
            run()
        elif action == "retry" and results.exists():
            retry.set_aside(results, {"oom"})
        elif action == "report" and (results / "tables").exists():
            (results / "report.html").unlink(missing_ok=True)
        elif action == "price":
            set_price(checkout, rng.choice([5.0, 7.0]))
        elif action == "kill":
            kill(rng)
        done.append(f"{step}: {action}")
        after = rows_of(checkout)
        kept = {name: told for name, told in before.items() if name in after}
        assert kept == {name: after[name] for name in kept}, f"a point was measured twice, {done}"
        if not action.startswith("retry"):
            assert set(before) <= set(after), f"a row was lost, {done}"
    run()
    expected = fresh(checkout)
    assert json.loads((results / "report.html").read_text()) == expected, done
    planned = pq.read_table(results / "points.parquet")
    assert sorted(planned["point_id"].to_pylist()) == expected["points"], done
    # and nothing is left to do
    told = {path: path.stat().st_mtime_ns for path in results.rglob("*") if path.is_file()}
    run()
    assert told == {path: path.stat().st_mtime_ns for path in told}


def test_tables_that_could_not_be_made_or_know_an_old_price_are_made_anew(checkout):
    run()
    results = checkout / "results" / "one"
    write(checkout, {**STUDY, "title": "Second"})
    program = checkout / "stand_in_tabulate.py"
    program.write_text("raise SystemExit(1)\n" + TABULATE)
    broken = snakemake(python=warm_python())
    broken.communicate()
    assert broken.returncode != 0
    program.write_text(TABULATE)
    run()
    assert json.loads((results / "report.html").read_text()) == fresh(checkout)
    set_price(checkout, 7.0)
    run()
    assert json.loads((results / "report.html").read_text()) == fresh(checkout)
