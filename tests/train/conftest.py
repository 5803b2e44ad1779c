import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scaling.grid import Point
from scaling.launch.point import rank_environment
from scaling.rank_files import RankFiles, RankResult
from tests.points import tiny_point

Train = Callable[[Point], dict[int, RankResult]]


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
def train(fork_server: subprocess.Popen[str], tmp_path: Path) -> Train:
    """Train a point on real ranks; what each of them left."""

    def trained(point: Point) -> dict[int, RankResult]:
        assert fork_server.stdin is not None
        assert fork_server.stdout is not None
        directory = Path(tempfile.mkdtemp(dir=tmp_path))  # ranks must not meet an earlier store
        asked = {"point": point.to_json(), "directory": str(directory)}
        fork_server.stdin.write(json.dumps(asked) + "\n")
        fork_server.stdin.flush()
        codes = json.loads(fork_server.stdout.readline())
        files = RankFiles(directory)
        logs = "\n".join(log.read_text() for log in directory.glob("rank*.log"))
        assert not any(codes), f"{files.failures()}\n{logs}"
        return files.results()

    return trained
