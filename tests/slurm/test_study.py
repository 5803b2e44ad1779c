"""A study of real training on a real Slurm: DeepSpeed ranks on gloo, some of them on two nodes."""

import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests.conftest import MODELS, copy_project
from tests.processes import ended, until
from tests.ran import rows_of
from tests.slurm.lab import end
from tests.warm import warm_python
from tests.workflow.conftest import stand_in

pytestmark = [pytest.mark.ranks, pytest.mark.slurm]

STUDY = {
    "title": "Real ranks on four pretended nodes",
    "kind": "strong",
    "axes": {
        "model": "mini", "cluster": "lab", "global_batch_size": 8, "seq_length": 32,
        "precision": "fp32", "attention": "math", "micro_batch_size": 2, "zero_stage": 1,
    },
    "layouts": [{"world_size": [2, 4]}, {"world_size": 4, "tp": 2}, {"world_size": 2, "pp": 2}],
    "measure": {"warmup_steps": 1, "measured_steps": 10, "time_limit_s": 300},
}  # fmt: skip
SLURM = {"account": "lab", "partition": "main", "cpus_per_task": 2}
LAB = {"gpu": "cpu", "gpus_per_node": 2, "nodes": 4, "slurm": SLURM, "source": "made for a test"}
CLUSTERS = {"lab": LAB, "narrow": LAB | {"gpus_per_node": 1}}


class RealStudy:
    """A checkout in which a study runs with the profile for Slurm."""

    def __init__(self, lab, root):
        self.lab, self.root, self.runs = lab, root, []
        config = root / "config"
        stand_in = {"tiny": MODELS["mini"]}
        (config / "models.yaml").write_text(yaml.safe_dump({**MODELS, **stand_in}))
        (config / "clusters.yaml").write_text(yaml.safe_dump(CLUSTERS))
        self.write(STUDY)

    def write(self, study):
        (self.root / "config/studies/real.yaml").write_text(yaml.safe_dump(study))

    def start(self, *options, hosts=True):
        command = [
            *(warm_python(), "-m", "snakemake", "--profile", "config/profiles/slurm"),
            *("--seconds-between-status-checks", "1", "--latency-wait", "5"),
            *(*options, "--config", "study=real"),
        ]
        with (self.root / "snakemake.log").open("ab") as log:
            run = subprocess.Popen(
                command, cwd=self.root, stdout=log,
                env={**self.lab.environment, "SCALING_HOSTS": "1" if hosts else "0"},
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.runs.append(run)
        return run

    @property
    def said(self):
        return (self.root / "snakemake.log").read_text()

    def training(self):
        """Points of which the first rank has begun to step."""
        beats = (self.root / "logs/real/ranks").glob("*/.run-*/rank0.beat")
        return {path.parts[-3] for path in beats if "step" in path.read_text()}

    def rows(self):
        return rows_of(self.root / "results/real")


@pytest.fixture
def study(lab, tmp_path):
    """In a folder whose name Slurm would replace by names of its own."""
    lab.start()
    folder = tmp_path / "%j %x 100%"
    folder.mkdir()
    made = RealStudy(lab, copy_project(folder))
    yield made
    end(made.runs, lab)
    assert list(tmp_path.iterdir()) == [folder]


def test_points_over_four_nodes_train_alike_in_shared_allocations(study):
    stand_in(study.root)
    before = study.lab.submissions()
    assert study.start().wait(timeout=500) == 0, study.said
    rows = study.rows()
    assert [row["outcome"] for row in rows] == ["ok"] * 4, [row["error_message"] for row in rows]
    assert {(row["world_size"], len(row["hosts"])) for row in rows} == {(2, 1), (4, 2)}
    for row in rows:
        assert row["losses"] == pytest.approx(rows[0]["losses"], rel=1e-4)
    # points of equal ranks share an allocation
    assert Counter(row["world_size"] for row in rows) == {2: 2, 4: 2}
    assert len(study.lab.submissions() - before) == 2
    assert (study.root / "results/real/report.html").exists()


def test_a_point_that_waits_for_drained_nodes_says_which_and_why(study):
    nodes = "node=node[1-4]"
    study.lab.ask("scontrol", "update", nodes, "state=drain", "reason=fan broken")
    study.write({**STUDY, "layouts": [{"world_size": 2}]})
    status = [warm_python(), "-m", "scaling", "status", "real"]
    try:
        study.start()
        until("Slurm says why it waits", lambda: "DRAINED" in "".join(study.lab.reasons()))
        shown = ended(*status, cwd=study.root, env=study.lab.environment).stdout
    finally:
        study.lab.ask("scontrol", "update", nodes, "state=resume")
    assert "; node[1-4] is drained: fan broken\n" in shown


def rank_processes(point):
    """The ranks of a running point by number, found by the log that each of them writes."""
    found = {}
    for output in Path("/proc").glob("[0-9]*/fd/1"):
        try:
            log = output.readlink()
            program = (output.parents[1] / "exe").readlink().name
        except OSError:  # it has just ended
            continue
        if log.parent.name == point and "python" in program:
            found[int(log.stem.removeprefix("rank"))] = int(output.parts[2])
    return found


def test_a_killed_a_stopped_and_a_late_rank_are_rows(study):
    # ranks start later on a busy machine: a limit that passes during the start calls them silent
    limit_s = 25.0 * min(5.0, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
    limits = {"warmup_steps": 1, "measured_steps": 1_000, "time_limit_s": limit_s}
    layouts = [{"world_size": 2, "zero_stage": [0, 1]}, {"world_size": 4}]
    axes = {**STUDY["axes"], "global_batch_size": 64}  # no such limit has room for 1,000
    study.write({**STUDY, "axes": axes, "layouts": layouts, "measure": limits})
    stand_in(study.root)
    run = study.start("--submitit-pack", "2")
    rows = study.root / "results/real/rows"
    until("two points train", lambda: len(study.training()) == 2)
    two, four = sorted(study.training(), key=lambda point: point.split("-g")[1])
    os.kill(rank_processes(two)[1], signal.SIGKILL)
    for pid in rank_processes(four).values():
        os.kill(pid, signal.SIGSTOP)
    assert run.wait(timeout=500) == 0, study.said
    outcomes = sorted(row["outcome"] for row in study.rows())
    assert outcomes == ["error", "hang", "timeout"], outcomes
    assert not list(rows.glob("*.running"))


def test_ranks_that_start_from_nothing_and_a_cancelled_point_leaves_no_row(study):
    two_nodes = {"cluster": "narrow", "world_size": 2, "zero_stage": [0, 1]}
    limits = {"warmup_steps": 1, "measured_steps": 10_000, "time_limit_s": 400}
    study.write({**STUDY, "layouts": [two_nodes], "measure": limits})
    run = study.start(hosts=False)
    until("a point trains", study.training)
    (first,) = study.training()
    os.kill(rank_processes(first)[1], signal.SIGKILL)
    until("the other one trains", lambda: study.training() - {first})
    study.lab.ask("scancel", *study.lab.queue())
    until("the allocation is over", lambda: not study.lab.queue())
    run.send_signal(signal.SIGINT)
    run.wait(timeout=500)
    (row,) = study.rows()
    assert (row["outcome"], row["error_message"]) == ("error", "rank 1 was killed by SIGKILL")
    assert not list((study.root / "results/real/rows").glob("*.running"))


def test_ranks_told_to_end_leave_no_row_and_run_again(study):
    limits = {"warmup_steps": 1, "measured_steps": 300, "time_limit_s": 400}
    study.write({**STUDY, "layouts": [{"world_size": 2}], "measure": limits})
    stand_in(study.root)
    before = study.lab.submissions()
    run = study.start()
    until("its job is sent", lambda: study.lab.submissions() - before)
    (job,) = study.lab.submissions() - before
    until("a point trains", study.training)
    study.lab.ask("scancel", "--signal=TERM", job)  # all of its steps: ranks, or who forks them
    assert run.wait(timeout=400) == 0, study.said
    (row,) = study.rows()
    assert (row["outcome"], row["attempt"], row["job_id"]) == ("ok", 1, job), row["error_message"]
    assert "Restarts=1" in study.lab.ask("scontrol", "show", "job", job)


# Measures nothing: a row that says where Slurm let it run.
WHERE = """
import os, sys
from pathlib import Path
from scaling.record.files import write_rows
from scaling.study.point import point_from_json
from tests.rows import row_of
point = point_from_json(Path(sys.argv[1]).read_text())
excluded = sys.argv[3].removeprefix("--excluded=").split(",")
row = row_of(point, hosts=[os.environ["SLURMD_NODENAME"]], excluded_hosts=excluded)
write_rows(Path(sys.argv[2]), [row])
"""


def test_contenders_run_once_more_on_other_nodes_and_nothing_runs_on_a_slow_one(study):
    stand_in(study.root, measure=WHERE)
    repeats = {"repeats": {"at_most": 2, "for": "contenders"}}
    layouts = [{"world_size": 2, "zero_stage": [0, 1]}]
    study.write({**STUDY, "layouts": layouts, "measure": STUDY["measure"] | repeats})
    excluded = study.root / "results/real/excluded.json"
    excluded.parent.mkdir(parents=True)
    excluded.write_text('{"node1": "its runs take 10% longer"}')
    assert study.start("--submitit-pack", "1").wait(timeout=500) == 0, study.said
    runs = {}  # by layout
    for row in sorted(study.rows(), key=lambda row: row["repeat"]):
        runs.setdefault(row["zero_stage"], []).append(row)
    for of_layout in runs.values():
        first, again = of_layout
        assert (first["repeat"], again["repeat"]) == (0, 1)
        assert len({"node1", *first["hosts"], *again["hosts"]}) == 3
        assert first["excluded_hosts"] == ["node1"]
        assert again["excluded_hosts"] == sorted(["node1", *first["hosts"]])
    assert runs.keys() == {0, 1}
