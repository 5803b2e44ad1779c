import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scaling.launch.start.environment import rank_environment
from scaling.record.rank_files import RankFailure, RankFiles, RankResult
from scaling.study.point import Point
from tests.points import tiny_point

Train = Callable[[Point], dict[int, RankResult]]
Attempt = Callable[[Point], dict[int, RankFailure]]
Run = Callable[[Point], tuple[list[int], RankFiles, str]]


@pytest.fixture(scope="session")
def fork_server() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.train.fork_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=rank_environment(tiny_point(), os.environ),
        cwd=Path(__file__).parents[2],
    ) as server:
        yield server
        assert server.stdin is not None
        server.stdin.close()


@pytest.fixture
def run_ranks(fork_server: subprocess.Popen[str], tmp_path: Path) -> Run:
    """Run a point on real ranks: their exit codes, what they left, and their logs."""

    def ran(point: Point) -> tuple[list[int], RankFiles, str]:
        assert fork_server.stdin is not None
        assert fork_server.stdout is not None
        directory = Path(tempfile.mkdtemp(dir=tmp_path))  # ranks must not meet an earlier store
        asked = {"point": point.to_json(), "directory": str(directory)}
        fork_server.stdin.write(json.dumps(asked) + "\n")
        fork_server.stdin.flush()
        codes = json.loads(fork_server.stdout.readline())
        logs = "\n".join(log.read_text() for log in directory.glob("rank*.log"))
        return codes, RankFiles(directory), logs

    return ran


@pytest.fixture
def train(run_ranks: Run) -> Train:
    """Train a point on real ranks; what each of them left."""

    def trained(point: Point) -> dict[int, RankResult]:
        codes, files, logs = run_ranks(point)
        assert not any(codes), f"{files.failures()}\n{logs}"
        return files.results()

    return trained


@pytest.fixture
def attempt(run_ranks: Run) -> Attempt:
    """Run a point that must fail on every rank; what each of them said."""

    def attempted(point: Point) -> dict[int, RankFailure]:
        codes, files, logs = run_ranks(point)
        assert all(codes), logs
        return files.failures()

    return attempted
