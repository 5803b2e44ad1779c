"""Ranks of a fork server train, fail and end like ranks that start as fresh processes."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from scaling.launch import NotMeasured, measure
from scaling.launch.fork_server import Lines
from scaling.launch.start.environment import rank_environment
from scaling.launch.start.forked import (
    AGENT,
    ForkedRanks,
    NoForkServer,
    local_fork_server,
    start_on_fork_servers,
)
from scaling.launch.start.starter import Launch
from tests.launch.conftest import LAUNCHER, TWO_RANKS, in_time
from tests.points import tiny_point
from tests.processes import is_running, until, write_program, writers_of

pytestmark = pytest.mark.ranks


def start_agent(folder):
    """An agent on this machine, started as srun would start it on a node."""
    environment = {**rank_environment(tiny_point(), os.environ), "SLURMD_NODENAME": "localhost"}
    for name in ("orders", "node0"):
        (folder / name).touch(mode=0o600)
    agent = subprocess.Popen([*AGENT, str(folder)], env=environment)
    (folder / "pid").write_text(str(agent.pid))
    return agent


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The folder of an agent."""
    folder = tmp_path_factory.mktemp("server")
    agent = start_agent(folder)
    yield folder
    agent.terminate()
    agent.wait()


@pytest.fixture
def forked(study, server, monkeypatch):
    """Measure a point on the fork server, as if this were an allocation of Slurm."""
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    study.logs.parent.mkdir(parents=True)
    (study.logs.parent / ".hosts-1-0").symlink_to(server)
    return partial(measure, row_path=study.row_path, start=start_on_fork_servers)


def test_one_fork_server_trains_each_point_in_fresh_processes(
    study, server, forked, cold, monkeypatch
):
    monkeypatch.setenv("HF_TOKEN", "a secret")
    before = os.umask(0o002)
    try:
        first, second = (forked(study.write(TWO_RANKS)) for _ in range(2))
    finally:
        os.umask(before)
    assert [row.outcome for row in (cold, first, second)] == ["ok"] * 3, first.error_message
    assert first.losses == second.losses == cold.losses
    assert first.stack_fingerprint == cold.stack_fingerprint
    # the environment of ranks is readable by their user only
    assert "a secret" in (server / "orders").read_text()
    for file in (server, server / "orders", server / "node0"):
        assert file.stat().st_mode & 0o077 == 0


def late(study, measured, **more):
    """Measure a point that is late after so many seconds."""

    def run(limit_s):
        point = tiny_point(dp=2, measured_steps=100_000, time_limit_s=limit_s)
        row = measured(study.write(point), **more)
        assert row.outcome == "timeout", row.error_message
        return row

    return run


def test_a_late_point_ends_with_its_stacks_and_the_host_goes_on(study, forked):
    in_time(late(study, forked), lambda _: study.has_stacks())
    assert study.has_stacks()
    assert forked(study.write(tiny_point())).outcome == "ok"


def test_a_rank_that_is_killed_is_the_outcome_of_its_point_and_of_no_other(study, forked):
    threads = []  # of the process that forks ranks, which would not survive a fork

    def kill():
        rank = process_of(study, 1)
        threads.append(rank.parent().num_threads())
        rank.kill()

    threading.Thread(target=kill).start()
    row = forked(study.write(tiny_point(dp=2, measured_steps=100_000)))
    assert (row.outcome, row.error_message) == ("error", "rank 1 was killed by SIGKILL")
    assert threads == [1]
    assert forked(study.write(tiny_point())).outcome == "ok"


def process_of(study, rank):
    """The process of a rank, once it has said that it runs."""
    until(f"rank {rank} runs", lambda: list(study.logs.glob(f".run-*/rank{rank}.beat")))
    return psutil.Process(writers_of(study.logs)[study.logs / f"rank{rank}.log"])


def test_ranks_end_with_the_process_that_ordered_them(study, server):
    study.write(tiny_point(measured_steps=100_000))
    command = [sys.executable, "-c", LAUNCHER, str(study.point_path), str(study.row_path)]
    order = subprocess.Popen(command, env={**os.environ, "SCALING_HOST": str(server)})
    rank = process_of(study, 0).pid
    order.kill()
    order.wait()

    until("the rank ends", lambda: not is_running(rank))


def test_a_killed_fork_server_is_named_and_replaced(study, forked):
    path = study.write(tiny_point(measured_steps=100_000))
    threading.Thread(target=lambda: os.kill(process_of(study, 0).ppid(), signal.SIGKILL)).start()
    row = forked(path)
    said = "rank 0 was lost with its fork server, which died"
    assert (row.outcome, row.error_message) == ("error", said)
    assert forked(study.write(tiny_point())).outcome == "ok"


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGKILL, "rank 0 was lost with its fork server, which died"),
        (signal.SIGTERM, "rank 0 was killed by SIGTERM"),
    ],
    ids=["killed", "preempted"],
)
def test_an_agent_that_is_killed_differs_from_one_that_is_told_to_end(
    study, monkeypatch, tmp_path, number, said
):
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    folder = study.logs.parent / ".hosts-1-0"
    folder.mkdir(mode=0o700, parents=True)
    agent = start_agent(folder)
    path = study.write(tiny_point(measured_steps=100_000))

    ranks = []

    def end():
        ranks.append(process_of(study, 0).pid)
        node = folder / "node0"  # an order that is not confirmed would be given to nobody else
        until("the agent confirms the order", lambda: '"started"' in node.read_text())
        agent.send_signal(number)
        agent.wait()

    threading.Thread(target=end).start()
    if number == signal.SIGKILL:
        row = measure(path, study.row_path, start=start_on_fork_servers)
        assert (row.outcome, row.error_message) == ("error", said)
        until("the rank ends too", lambda: not is_running(ranks[0]))
    else:
        with pytest.raises(NotMeasured, match=said):
            measure(path, study.row_path, start=start_on_fork_servers)
        assert not study.row_path.exists()


@pytest.mark.parametrize("mode", [0o770, 0o704], ids=["group", "others"])
def test_a_folder_that_others_may_use_is_refused(tmp_path, mode):
    tmp_path.chmod(mode)
    for use in (Lines.new, partial(Lines.add, order="a")):
        with pytest.raises(PermissionError, match="not this user's alone"):
            use(Lines(tmp_path / "orders"))


def test_half_a_line_waits_for_its_end(tmp_path):
    tmp_path.chmod(0o700)
    lines = Lines(tmp_path / "orders")
    lines.add(order="a")
    with (tmp_path / "orders").open("a") as file:
        file.write('{"order": ')
    assert lines.new() == [{"order": "a"}]
    with (tmp_path / "orders").open("a") as file:
        file.write('"b"}\n')
    assert lines.new() == [{"order": "b"}]


def test_agents_with_too_few_gpus_get_no_order(tmp_path):
    tmp_path.chmod(0o700)
    (tmp_path / "pid").write_text(str(os.getpid()))
    Lines(tmp_path / "node0").add(name="localhost", gpus=1)
    point = dataclasses.replace(tiny_point(dp=2), gpu="h100-80gb")
    with pytest.raises(NoForkServer, match="1 of 2 GPUs"):
        ForkedRanks(tmp_path, Launch(["rank", "point.json", "x"], point, {}, tmp_path))
    assert not (tmp_path / "orders").exists()


def test_agents_that_never_served_are_not_started_again(study, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    srun = "#!/bin/sh\necho tried >> $(/usr/bin/dirname $0)/tries\nexit 1\n"
    write_program(tmp_path / "srun", srun)
    study.logs.mkdir(parents=True)
    environment = {"SLURM_JOB_ID": "2", "PATH": str(tmp_path)}
    launch = Launch(["rank", "point", "directory"], tiny_point(), environment, study.logs)

    with pytest.raises(TimeoutError, match="no fork server answers"):
        start_on_fork_servers(launch)
    with pytest.raises(NoForkServer, match="fork servers did not start"):
        start_on_fork_servers(launch)

    assert (tmp_path / "tries").read_text() == "tried\n"


def test_folders_of_old_agents_are_removed(tmp_path):
    folders = {name: tmp_path / f".hosts-{name}" for name in ("2-0", "3-0")}
    for folder in folders.values():
        folder.mkdir()
    month_ago = time.time() - 31 * 86400
    os.utime(folders["3-0"], (month_ago, month_ago))
    environment = {"SLURM_JOB_ID": "2", "SLURM_RESTART_COUNT": "1", "PATH": str(tmp_path)}
    (tmp_path / "srun").symlink_to("/bin/false")

    with pytest.raises(TimeoutError, match="no fork server answers"):
        start_on_fork_servers(Launch(["rank"], tiny_point(), environment, tmp_path / "tiny"))

    assert {name for name, folder in folders.items() if folder.exists()} == {"2-0"}


def test_points_of_a_run_are_forked_by_its_host_which_ends_with_the_run(study, monkeypatch):
    point = tiny_point(warmup_steps=1, measured_steps=5)
    logs = study.root / "logs" / "tiny"
    with local_fork_server(point, logs) as found:
        (place,) = logs.glob(".host-*")
        host = psutil.Process(int((place / "pid").read_text()))
        monkeypatch.setenv("SCALING_HOST", found["SCALING_HOST"])
        row = measure(study.write(point), study.row_path)
        assert row.outcome == "ok", row.error_message
        in_time(
            late(study, measure, row_path=study.row_path), lambda _: study.has_stacks("_run_rank")
        )
        assert study.has_stacks("_run_rank")
    assert not host.is_running()
    assert not place.exists()

    # the environment still names it: a point that is started late starts from nothing
    again = measure(study.write(point), study.row_path)
    assert again.outcome == "ok", again.error_message
    assert again.losses == row.losses
    assert again.hosts == row.hosts


def test_a_host_ends_by_itself_when_its_run_was_killed(study):
    study.write(tiny_point())
    run = subprocess.Popen([sys.executable, "-c", KEEPS, str(study.point_path), str(study.root)])
    place = study.root / "place"
    until("the run has a host", place.exists)
    folder = Path(place.read_text())
    host = psutil.Process(int((folder / "pid").read_text()))
    until("the host serves", lambda: (folder / "node0").read_text())
    run.kill()
    run.wait()
    host.wait(timeout=300)
    assert not folder.exists()


KEEPS = """
import sys, time
from pathlib import Path
from scaling.launch.start.forked import local_fork_server
from scaling.study.point import point_from_json
root = Path(sys.argv[2])
with local_fork_server(point_from_json(Path(sys.argv[1]).read_text()), root) as found:
    part = root / "part"
    part.write_text(found["SCALING_HOST"])
    part.rename(root / "place")
    time.sleep(600)
"""


def test_ranks_start_from_nothing_where_that_is_asked_for(study, monkeypatch):
    monkeypatch.setenv("SCALING_HOSTS", "0")
    with local_fork_server(tiny_point(), study.root) as found:
        assert found == {}
    with local_fork_server(None, study.root) as found:
        assert found == {}
