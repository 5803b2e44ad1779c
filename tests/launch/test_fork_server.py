"""Ranks of a fork server train, fail and end like ranks that start as fresh processes."""

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from scaling.launch import NotMeasured, measure
from scaling.launch.fork_server import protocol
from scaling.launch.fork_server.client import NoForkServer, order_ranks, start_on_fork_servers
from scaling.launch.fork_server.protocol import ForkServer, Order
from scaling.launch.start.environment import rank_environment
from scaling.launch.start.starter import Launch
from scaling.record.row import Row
from tests.launch.conftest import TWO_RANKS, Study, in_time
from tests.points import tiny_point
from tests.processes import is_running, until, write_program, writers_of

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a fork server on this machine, started as srun would start it on a node."""
    place = tmp_path_factory.mktemp("server")
    environment = {**rank_environment(tiny_point(), os.environ), "SLURMD_NODENAME": "localhost"}
    process = subprocess.Popen(
        [sys.executable, "-m", "scaling.launch.fork_server.server", str(place)], env=environment
    )
    until("it serves", lambda: (place / "node0.json").exists() or process.poll() is not None)
    assert process.poll() is None
    yield place
    process.kill()
    process.wait()


@pytest.fixture
def forked(study: Study, server: Path, monkeypatch: pytest.MonkeyPatch) -> partial[Row]:
    """Measure a point on the fork server, as if this were an allocation of Slurm."""
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    study.logs.parent.mkdir(parents=True)
    (study.logs.parent / ".hosts-1-0").symlink_to(server)
    return partial(measure, row_path=study.row_path, start=start_on_fork_servers)


def test_points_one_after_another_train_on_fresh_processes_of_one_fork_server(
    study: Study, forked: partial[Row], cold: Row
) -> None:
    first = forked(study.write(TWO_RANKS))
    second = forked(study.write(TWO_RANKS))

    assert [row.outcome for row in (cold, first, second)] == ["ok"] * 3, first.error_message
    assert first.losses == second.losses == cold.losses
    assert first.stack_fingerprint == cold.stack_fingerprint


def test_a_late_point_ends_with_its_stacks_and_the_host_goes_on(
    study: Study, forked: partial[Row]
) -> None:
    def run(limit_s: float) -> Row:
        point = tiny_point(dp=2, measured_steps=100_000, time_limit_s=limit_s)
        return forked(study.write(point))

    late = in_time(run, lambda _: study.has_stacks())
    assert late.outcome == "timeout", late.error_message
    assert study.has_stacks()

    assert forked(study.write(tiny_point())).outcome == "ok"


def test_a_rank_that_is_killed_is_the_outcome_of_its_point_and_of_no_other(
    study: Study, forked: partial[Row]
) -> None:
    threading.Thread(target=lambda: process_of(study, 1).kill()).start()
    row = forked(study.write(tiny_point(dp=2, measured_steps=100_000)))

    assert (row.outcome, row.error_message) == ("error", "rank 1 was killed by SIGKILL")
    assert forked(study.write(tiny_point())).outcome == "ok"


def process_of(study: Study, rank: int) -> psutil.Process:
    """The process of a rank, once it has said that it runs."""
    until(f"rank {rank} runs", lambda: list(study.logs.glob(f".run-*/rank{rank}.beat")))
    return psutil.Process(writers_of(study.logs)[study.logs / f"rank{rank}.log"])


def test_ranks_end_with_the_process_that_ordered_them(study: Study, forked: partial[Row]) -> None:
    study.write(tiny_point(measured_steps=100_000))
    order = subprocess.Popen(
        [sys.executable, "-c", ORDER, str(study.point_path), str(study.row_path)],
        env={**os.environ, "SLURM_JOB_ID": "1"},
    )
    rank = process_of(study, 0).pid
    order.kill()
    order.wait()

    until("the rank ends", lambda: not is_running(rank))


ORDER = """
import sys
from pathlib import Path
from scaling.launch import measure
from scaling.launch.fork_server.client import start_on_fork_servers
measure(Path(sys.argv[1]), Path(sys.argv[2]), start=start_on_fork_servers)
"""


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (
            signal.SIGKILL,
            "rank 0 was lost with its fork server on localhost, which died",
        ),
        (signal.SIGTERM, "rank 0 was killed by SIGTERM"),
    ],
    ids=["killed", "preempted"],
)
def test_a_host_that_is_killed_is_told_from_one_that_is_told_to_end(
    study: Study, forked: partial[Row], number: signal.Signals, said: str
) -> None:
    path = study.write(tiny_point(measured_steps=100_000))
    threading.Thread(target=lambda: os.kill(process_of(study, 0).ppid(), number)).start()
    if number == signal.SIGKILL:
        row = forked(path)
        assert (row.outcome, row.error_message) == ("error", said)
    else:
        with pytest.raises(NotMeasured, match=said):
            forked(path)
        assert not study.row_path.exists()
    assert forked(study.write(tiny_point())).outcome == "ok"


def test_connections_that_say_nothing_or_know_no_key_keep_no_point_waiting(
    study: Study, server: Path, forked: partial[Row]
) -> None:
    said = protocol.read_record(server / "node0.json", ForkServer)
    assert (server / "node0.json").stat().st_mode & 0o077 == 0
    with contextlib.ExitStack() as opened:
        silent = [
            opened.enter_context(socket.create_connection((said.name, said.port), timeout=60))
            for _ in range(3)
        ]
        silent[0].sendall(b"\xff\xff\xff\xff")  # the start of a very long message
        with pytest.raises(OSError, match="is not our fork server any more"):
            protocol.connect(dataclasses.replace(said, key="guessed"))
        assert forked(study.write(tiny_point())).outcome == "ok"
        for connection in silent:
            with contextlib.suppress(ConnectionResetError):
                while connection.recv(4096):  # its challenge, then the end: none is kept for ever
                    pass


def test_what_ranks_have_in_their_environment_does_not_cross_the_network(tmp_path: Path) -> None:
    heard: list[object] = []
    with socket.create_server(("localhost", 0)) as server:
        there = ForkServer(name="localhost", port=server.getsockname()[1], key="k", gpus=0)

        def answer() -> None:
            taken, _ = server.accept()
            heard.append(protocol.accept(taken, "k").recv())

        thread = threading.Thread(target=answer)
        thread.start()
        command = ["rank", "point.json", str(tmp_path)]
        ranks = order_ranks(
            [there], Launch(command, tiny_point(), {"HF_TOKEN": "secret"}, tmp_path)
        )
        thread.join()
        ranks.kill()
    (path,) = tmp_path.glob("order*.json")
    assert heard == [str(path)]
    assert path.stat().st_mode & 0o077 == 0
    assert protocol.read_record(path, Order).environment == {"HF_TOKEN": "secret"}


def test_hosts_that_see_too_few_gpus_are_not_asked(tmp_path: Path) -> None:
    there = ForkServer(name="localhost", port=1, key="k", gpus=1)
    point = dataclasses.replace(tiny_point(dp=2), gpu="h100-80gb")
    launch = Launch(["rank", "point.json", str(tmp_path)], point, {}, tmp_path)
    with pytest.raises(NoForkServer, match="1 of 2 GPUs"):
        order_ranks([there], launch)


def test_where_hosts_did_not_start_it_is_said_and_not_tried_again(
    study: Study, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    srun = "#!/bin/sh\necho tried >> $(/usr/bin/dirname $0)/tries\nexit 1\n"
    write_program(tmp_path / "srun", srun)
    study.logs.mkdir(parents=True)
    environment = {"SLURM_JOB_ID": "2", "PATH": str(tmp_path)}
    launch = Launch(["rank", "point", "directory"], tiny_point(), environment, study.logs)

    for _ in range(2):
        with pytest.raises(NoForkServer, match="fork servers did not start"):
            start_on_fork_servers(launch)

    assert (tmp_path / "tries").read_text() == "tried\n"


def test_folders_of_earlier_starts_of_the_job_and_old_ones_go_when_it_starts_its_own(
    tmp_path: Path,
) -> None:
    folders = {name: tmp_path / f".hosts-{name}" for name in ("2-0", "2-1", "22-0", "3-0")}
    for name, folder in folders.items():
        if name != "2-1":
            folder.mkdir()
    month_ago = time.time() - 31 * 86400
    os.utime(folders["3-0"], (month_ago, month_ago))
    environment = {"SLURM_JOB_ID": "2", "SLURM_RESTART_COUNT": "1", "PATH": str(tmp_path)}
    (tmp_path / "srun").symlink_to("/bin/false")

    with pytest.raises(NoForkServer, match="did not start"):
        start_on_fork_servers(Launch(["rank"], tiny_point(), environment, tmp_path / "tiny"))

    assert {name for name, folder in folders.items() if folder.exists()} == {"2-1", "22-0"}
