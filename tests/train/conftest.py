"""Real ranks, forked from one process that has imported all they need."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from scaling.launch.start.environment import rank_environment
from scaling.record.rank_files import RankFailure, RankFiles, RankResult
from scaling.study.point import Point
from scaling.train.failures import KernelUnavailable
from scaling.train.kernels.availability import require_kernels
from tests.conftest import PROJECT
from tests.points import tiny_point
from tests.train.together import Curves

torch.set_num_threads(1)  # of tiny tensors two threads wait for each other more than they compute

Train = Callable[[Point], dict[int, RankResult]]
Attempt = Callable[[Point], dict[int, RankFailure]]
Learn = Callable[[Point], Curves]
Run = Callable[[Point], tuple[list[int], RankFiles, str]]


def lacking(point: Point) -> str | None:
    """The feature that this torch lacks for a point; None from 2.13 on."""
    try:
        require_kernels(point.shape, point.layout, torch.device("cpu"))
    except KernelUnavailable as error:
        if torch.__version__ >= "2.13":
            raise
        return str(error)
    return None


def skip_if_lacking(point: Point) -> None:
    if reason := lacking(point):
        pytest.skip(reason)


class ForkServer:
    """The process that ranks are forked from (fork_server.py), started when first asked.

    One that a test gave up waiting for is killed with its ranks: its late answer would be taken for
    that to the next question.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, **question: object) -> Any:
        """The answer to a question, both as JSON."""
        self._process = self._process or self._started()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """End the process and its ranks, if there are any."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with self._process:  # closes its pipes and waits for it
                self._process = None

    @staticmethod
    def _started() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.train.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=rank_environment(tiny_point(), os.environ),
            cwd=PROJECT,
            start_new_session=True,
        )


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.kill()


@pytest.fixture
def run_ranks(fork_server: ForkServer, tmp_path: Path) -> Run:
    """Run a point on real ranks: their exit codes, what they left, and their logs."""

    def ran(point: Point) -> tuple[list[int], RankFiles, str]:
        directory = Path(tempfile.mkdtemp(dir=tmp_path))  # ranks must not meet an earlier store
        codes = fork_server.ask(point=point.to_json(), directory=str(directory))
        logs = "\n".join(log.read_text() for log in directory.glob("rank*.log"))
        return codes, RankFiles(directory), logs

    return ran


@pytest.fixture
def train(run_ranks: Run) -> Train:
    """Train a point on real ranks; what each of them left."""

    def trained(point: Point) -> dict[int, RankResult]:
        skip_if_lacking(point)
        codes, files, logs = run_ranks(point)
        assert not any(codes), f"{files.read(RankFailure)}\n{logs}"
        results = files.read(RankResult)
        assert len(results) == point.layout.world_size
        return results

    return trained


@pytest.fixture
def attempt(run_ranks: Run) -> Attempt:
    """Run a point that must fail on every rank; what each of them said."""

    def attempted(point: Point) -> dict[int, RankFailure]:
        codes, files, logs = run_ranks(point)
        assert all(codes), logs
        failures = files.read(RankFailure)
        assert len(failures) == point.layout.world_size, logs
        return failures

    return attempted


_TOGETHER = 16  # points a launch of ranks trains: each leaves groups and threads behind


@pytest.fixture(scope="session")
def learn(fork_server: ForkServer, request: pytest.FixtureRequest) -> Learn:
    """The losses of the ranks of a point, nothing measured.

    The first that is asked for is trained together with all others that the selected tests have as
    their parameter `point`.
    """
    curves: dict[str, Curves] = {}

    def train(points: list[Point]) -> None:
        answers = fork_server.ask(points=[point.to_json() for point in points])
        curves.update(zip((point.to_json() for point in points), answers, strict=True))

    def learned(point: Point) -> Curves:
        skip_if_lacking(point)
        if point.to_json() not in curves:
            asked = [point, *_points_of(request.session.items)]
            train_all(curves, [each for each in asked if lacking(each) is None])
        found = curves[point.to_json()]
        assert all("losses" in rank for rank in found), found
        whole = point.layout.zero_stage == 0 and point.layout.dp * point.layout.cp > 1
        allowed = {True} if whole else {True, None}
        assert {rank["replicas_agree"] for rank in found} <= allowed
        return found

    def train_all(known: dict[str, Curves], points: list[Point]) -> None:
        wanted = {each.to_json(): each for each in points if each.to_json() not in known}
        by_size: dict[int, list[Point]] = {}
        for each in wanted.values():
            by_size.setdefault(each.layout.world_size, []).append(each)
        for group in by_size.values():
            for first in range(0, len(group), _TOGETHER):
                train(group[first : first + _TOGETHER])

    return learned


def _points_of(items: Sequence[pytest.Item]) -> list[Point]:
    """The points that these tests are about."""
    calls = (item.callspec for item in items if hasattr(item, "callspec"))
    return [call.params["point"] for call in calls if "point" in call.params]
