"""How schedulers are asked, and that one more is a class and a line."""

import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake_executor_plugin_submitit import executor as executor_module
from snakemake_executor_plugin_submitit import ownership
from snakemake_executor_plugin_submitit.schedulers.slurm import Slurm, request_of
from snakemake_executor_plugin_submitit.schedulers.slurm.scheduler import owner_check
from snakemake_executor_plugin_submitit.settings import ExecutorSettings
from snakemake_interface_common.exceptions import WorkflowError

from tests.processes import write_program

EXECUTOR = Path(executor_module.__file__).parent
VARIABLES = r"\bS(LURM|BATCH|QUEUE|ACCT|RUN)\w*_\w+"
COMMANDS = r"srun|s(batch|queue|acct|cancel|control|info)"
LAUNCHER = EXECUTOR.parents[2] / "scaling" / "launch"


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Have a command of Slurm's print these bytes; returns the file of how it was called."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def write(name, answer):
        (tmp_path / f"{name}.answer").write_bytes(answer)
        answering = f'echo "$*" >> {tmp_path}/{name}.calls\ncat {tmp_path}/{name}.answer'
        write_program(tmp_path / name, f"#!/bin/sh\n{answering}\n")
        return tmp_path / f"{name}.calls"

    return write


@pytest.fixture
def slurm():
    return Slurm(ExecutorSettings())


def test_all_commands_speak_to_the_cluster_that_sbatch_is_told_of(command, slurm, monkeypatch):
    monkeypatch.setenv("SLURM_CLUSTERS", "west")
    monkeypatch.setenv("SBATCH_CLUSTERS", "east")
    calls = [command(name, b"") for name in ("squeue", "scancel", "sacct")]

    slurm.listed()
    slurm.cancel(["7"])
    slurm.accounted(["7"])

    assert [path.read_text().split()[0] for path in calls] == ["--clusters=east"] * 3


def test_accounting_says_who_cancelled_a_job_and_which_ran_out_of_memory(command, slurm):
    # slurmdbd has missed the end of 7, and would report it for ever
    sacct = command("sacct", b"7|RUNNING\n8|CANCELLED by 0\n9|OUT_OF_MEMORY\n")

    states = slurm.accounted(["7", "8", "9"])

    assert {job: state.text for job, state in states.items()} == {
        "8": "CANCELLED by root",
        "9": "OUT_OF_MEMORY: the job's memory limit (--mem) killed it; ask for more mem_mb",
    }
    assert sacct.read_text().endswith("--jobs=7,8,9\n")


def test_the_partitions_time_limit_bounds_an_allocation(command, slurm):
    calls = command("sinfo", b"n1|debug|30:00\nn1|gpu*|1-00:00:00\nn2|long|infinite\n")
    in_debug = request_of("r", {"runtime": 29, "slurm_partition": "debug"})

    assert slurm.longest_minutes(in_debug) == 30
    assert slurm.longest_minutes(request_of("r", {"runtime": 29})) == 1440
    assert slurm.longest_minutes(request_of("r", {"runtime": 5, "slurm_partition": "long"})) is None
    assert slurm.impossible(in_debug) == (
        "it may take 29 minutes, with 2 for its start, and a job of partition debug at most 30"
    )
    assert slurm.impossible(request_of("r", {"runtime": 28, "slurm_partition": "debug"})) is None
    assert len(calls.read_text().splitlines()) == 1


def test_without_an_answer_about_partitions_no_time_is_too_long(command, slurm):
    command("sinfo", b"")

    assert slurm.impossible(request_of("r", {"runtime": 10**6})) is None


def test_a_slow_node_that_has_left_the_cluster_is_excluded_no_more(command, slurm):
    command("sinfo", b"n1|gpu*|infinite\nn2|gpu*|infinite\n")
    slow = {"slurm_exclude": "n1,n9", "slurm_extra": "--exclude=n[2,3,9],typo"}

    after = slurm.avoiding(request_of("r", {"runtime": 5, **slow}), ["n4"]).options

    assert after["exclude"] == "n[2,3,9],typo,n1,n4"  # sbatch shall refuse what the user misspelt


def test_what_somebody_has_left_in_a_directory_is_told_by_squeue(command, slurm):
    ours = "snakemake in s, batch-1"
    lines = [
        f"1|RUNNING|None|/s|{ours}",
        f"2|RUNNING|None|/t|{ours}",
        f"3|COMPLETED|None|/s|{ours}",
    ]
    calls = command("squeue", "\n".join([*lines, "4|PENDING|None|/s|by hand"]).encode())

    assert slurm.left_in(Path("/s"), 2000) == ["1"]
    assert "--user=2000" in calls.read_text().split()


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"max_allocations": 0}, "--submitit-max-allocations 0: must be at least 1"),
        ({"max_restarts": -1}, "--submitit-max-restarts -1: must be at least 0"),
        ({"cluster": "pbs"}, "--submitit-cluster pbs: must be one of slurm"),
        ({}, "sbatch is not found"),
    ],
)
def test_settings_with_which_nothing_would_ever_be_sent_are_refused(
    monkeypatch, tmp_path, option, sentence
):
    monkeypatch.setenv("PATH", str(tmp_path))
    made = object.__new__(executor_module.Executor)
    made.workflow = SimpleNamespace(executor_settings=ExecutorSettings(**option))
    with pytest.raises(WorkflowError, match=sentence):
        made.__post_init__()


def test_jobs_are_sent_in_the_order_of_their_priorities():
    sent = []
    made = object.__new__(executor_module.Executor)
    made._dispatcher, made._has_begun = SimpleNamespace(submit=sent.extend), True
    made._handle_sigterm = made.run_job_pre = lambda *_: None
    made._wanted_job = lambda job: SimpleNamespace(snakemake_job=job, name=job.name)
    jobs = [
        SimpleNamespace(name=name, priority=at)
        for name, at in zip("abcd", (1, 3, 1, 9), strict=True)
    ]
    made.run_jobs(jobs)
    assert [wanted.name for wanted in sent] == ["d", "b", "a", "c"]


@pytest.mark.parametrize(
    ("error", "left"), [(OSError(28, "No space left"), True), (KeyboardInterrupt(), False)]
)
def test_an_error_of_snakemakes_own_leaves_allocations_running(error, left):
    made = object.__new__(executor_module.Executor)
    said = []
    made.say, made._ownership = said.append, SimpleNamespace(is_lost=False)
    made._dispatcher = SimpleNamespace(detach=lambda: 2, cancel=lambda: 2)
    try:
        raise error
    except BaseException:
        made.cancel_jobs([])
    assert said == [
        "2 jobs are left running; the same command re-attaches to them"
        if left
        else "2 jobs cancelled"
    ]


def test_an_output_folder_that_cannot_be_written_is_one_sentence(monkeypatch):
    def refuse(_):
        raise PermissionError(13, "Permission denied", "results/out")

    made = object.__new__(executor_module.Executor)
    made._is_plain = lambda job: True
    made.workflow = SimpleNamespace(async_run=refuse)
    job = SimpleNamespace(is_group=lambda: False, prepare=lambda: None, output=["results/out/a"])
    with pytest.raises(WorkflowError, match="results/out: cannot be written: Permission denied"):
        made.prepare(SimpleNamespace(snakemake_job=job))


def test_a_claims_folder_without_write_access_names_its_owner(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = SimpleNamespace(output=["a"])
    dag = SimpleNamespace(needrun_jobs=lambda: [job])
    made = object.__new__(executor_module.Executor)
    made.workflow = SimpleNamespace(executor_settings=ExecutorSettings(), dag=dag)
    monkeypatch.setattr(Slurm, "prepare", lambda _: None)

    def refuse(path, _):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(ownership, "write_json", refuse)
    claims = re.escape(str(tmp_path / ownership.CLAIMS))
    with pytest.raises(WorkflowError, match=f"{claims}: you .* {tmp_path.owner()},"):
        made.__post_init__()


@pytest.mark.parametrize(
    ("room", "words", "where"),
    [
        # `settings` has the name as the default
        (EXECUTOR, rf"(?i)slurm|{COMMANDS}",
         {"schedulers/slurm", "schedulers/__init__.py", "settings.py"}),
        (LAUNCHER, rf'{VARIABLES}|"({COMMANDS})"', {"start/slurm.py"}),
        # ranks and probes, below the launcher, ask for it too
        (LAUNCHER.parent, "SLURMD_NODENAME", {"cluster/node.py"}),
    ],
    ids=["executor", "launcher", "name of the node"],
)  # fmt: skip
def test_the_words_of_slurm_stand_in_one_place(room, words, where):
    files = {path: path.read_text() for path in room.rglob("*.py")}
    speak = {path for path, text in files.items() if re.search(words, text)}

    assert {str(path.relative_to(room)) for path in speak} >= {w for w in where if w.endswith("py")}
    assert not {path for path in speak if not any(path.is_relative_to(room / w) for w in where)}


@pytest.mark.parametrize(
    ("uid", "printed"), [(None, "run\n"), (65534, "not run: it is another user's\n")]
)
def test_a_job_ends_before_it_loads_what_another_user_owns(tmp_path, uid, printed):
    if os.getuid() != 0:
        pytest.skip("only root can give a folder to another user")
    batch = tmp_path / "it"
    batch.mkdir()
    if uid is not None:
        os.chown(batch, uid, uid)
    script = f"{owner_check(batch)}\necho run"
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert ran.stdout == printed
    assert ran.returncode == (0 if uid is None else 1)
