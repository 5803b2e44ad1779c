"""How schedulers are asked, and that one more is a class and a line."""

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake_executor_plugin_submitit import executor as executor_module
from snakemake_executor_plugin_submitit import ownership
from snakemake_executor_plugin_submitit.executor import Executor
from snakemake_executor_plugin_submitit.schedulers.slurm import Slurm, request_of
from snakemake_executor_plugin_submitit.schedulers.slurm.scheduler import owner_check
from snakemake_executor_plugin_submitit.settings import ExecutorSettings
from snakemake_interface_common.exceptions import WorkflowError

from tests.conftest import PROJECT
from tests.processes import ended, write_program

EXECUTOR = Path(executor_module.__file__).parent
VARIABLES = r"\bS(LURM|BATCH|QUEUE|ACCT|RUN)\w*_\w+"
COMMANDS = r"srun|s(batch|queue|acct|cancel|control|info)"


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


def asked(minutes, **resources):
    return request_of("r", {"runtime": minutes, **resources})


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
    in_debug = asked(29, slurm_partition="debug")
    assert slurm.longest_minutes(in_debug) == 30
    assert slurm.longest_minutes(asked(29)) == 1440
    assert slurm.longest_minutes(asked(5, slurm_partition="long")) is None
    assert slurm.impossible(in_debug) == (
        "it may take 29 minutes, with 2 for its start, and a job of partition debug at most 30"
    )
    assert slurm.impossible(asked(28, slurm_partition="debug")) is None
    assert len(calls.read_text().splitlines()) == 1


def test_without_an_answer_about_partitions_no_time_is_too_long(command, slurm):
    command("sinfo", b"")
    assert slurm.impossible(asked(10**6)) is None


def test_a_slow_node_that_has_left_the_cluster_is_excluded_no_more(command, slurm):
    command("sinfo", b"n1|gpu*|infinite\nn2|gpu*|infinite\n")
    request = asked(5, slurm_exclude="n1,n9", slurm_extra="--exclude=n[2,3,9],typo")
    after = slurm.avoiding(request, ["n4"]).options
    assert after["exclude"] == "n[2,3,9],typo,n1,n4"  # sbatch shall refuse what the user misspelt


def test_what_somebody_has_left_in_a_directory_is_told_by_squeue(command, slurm):
    ours = "snakemake in s, batch-1"
    lines = f"1|RUNNING|None|/s|{ours}\n2|RUNNING|None|/t|{ours}\n3|COMPLETED|None|/s|{ours}\n"
    calls = command("squeue", f"{lines}4|PENDING|None|/s|by hand".encode())
    assert slurm.left_in(Path("/s"), 2000) == ["1"]
    assert "--user=2000" in calls.read_text().split()


def executor(**attributes):
    """An executor that has only these."""
    made = object.__new__(Executor)
    made.__dict__.update(attributes)
    return made


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
    settings = ExecutorSettings(**option)
    with pytest.raises(WorkflowError, match=sentence):
        executor(workflow=SimpleNamespace(executor_settings=settings)).__post_init__()


def test_jobs_are_sent_in_the_order_of_their_priorities():
    sent = []
    made = executor(
        _dispatcher=SimpleNamespace(submit=sent.extend), _has_begun=True,
        _handle_sigterm=lambda *_: None, run_job_pre=lambda *_: None,
        _wanted_job=lambda job: SimpleNamespace(snakemake_job=job, name=job.name),
    )  # fmt: skip
    made.run_jobs(
        [SimpleNamespace(name=n, priority=p) for n, p in zip("abcd", (1, 3, 1, 9), strict=True)]
    )
    assert [wanted.name for wanted in sent] == ["d", "b", "a", "c"]


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(28, "No space left"),
         "2 jobs are left running; the same command re-attaches to them"),
        (KeyboardInterrupt(), "2 jobs cancelled"),
    ],
)  # fmt: skip
def test_an_error_of_snakemakes_own_leaves_allocations_running(error, sentence):
    said = []
    made = executor(
        say=said.append, _ownership=SimpleNamespace(is_lost=False),
        _dispatcher=SimpleNamespace(detach=lambda: 2, cancel=lambda: 2),
    )  # fmt: skip
    try:
        raise error
    except BaseException:
        made.cancel_jobs([])
    assert said == [sentence]


def denied(path, *_):
    raise PermissionError(13, "Permission denied", str(path))


def test_an_output_folder_that_cannot_be_written_is_one_sentence():
    workflow = SimpleNamespace(async_run=lambda _: denied("results/out"))
    made = executor(_is_plain=lambda job: True, workflow=workflow)
    job = SimpleNamespace(is_group=lambda: False, prepare=lambda: None, output=["results/out/a"])
    with pytest.raises(WorkflowError, match="results/out: cannot be written: Permission denied"):
        made.prepare(SimpleNamespace(snakemake_job=job))


def test_a_claims_folder_without_write_access_names_its_owner(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dag = SimpleNamespace(needrun_jobs=lambda: [SimpleNamespace(output=["a"])])
    made = executor(workflow=SimpleNamespace(executor_settings=ExecutorSettings(), dag=dag))
    monkeypatch.setattr(Slurm, "prepare", lambda _: None)
    monkeypatch.setattr(ownership, "write_json", denied)
    claims = re.escape(str(tmp_path / ownership.CLAIMS))
    with pytest.raises(WorkflowError, match=f"{claims}: you .* {tmp_path.owner()},"):
        made.__post_init__()


@pytest.mark.parametrize(
    ("room", "words", "where"),
    [
        # `settings` has the name as the default
        (EXECUTOR, rf"(?i)slurm|{COMMANDS}",
         {"schedulers/slurm", "schedulers/__init__.py", "settings.py"}),
        (PROJECT / "scaling/launch", rf'{VARIABLES}|"({COMMANDS})"', {"start/slurm.py"}),
        # ranks and probes, below the launcher, ask for it too
        (PROJECT / "scaling", "SLURMD_NODENAME", {"cluster/node.py"}),
    ],
    ids=["executor", "launcher", "name of the node"],
)  # fmt: skip
def test_the_words_of_slurm_stand_in_one_place(room, words, where):
    speak = {path for path in room.rglob("*.py") if re.search(words, path.read_text())}
    assert {str(path.relative_to(room)) for path in speak} >= {w for w in where if w.endswith("py")}
    assert not {path for path in speak if not any(path.is_relative_to(room / w) for w in where)}


@pytest.mark.parametrize(
    ("uid", "told"), [(None, (0, "run\n")), (65534, (1, "not run: it is another user's\n"))]
)
def test_a_job_ends_before_it_loads_what_another_user_owns(tmp_path, uid, told):
    if os.getuid() != 0:
        pytest.skip("only root can give a folder to another user")
    batch = tmp_path / "it"
    batch.mkdir()
    if uid is not None:
        os.chown(batch, uid, uid)
    script = f"{owner_check(batch)}\necho run"
    ran = ended("bash", "-c", script)
    assert (ran.returncode, ran.stdout) == told
