"""Real ranks, forked from one process that has imported all they need."""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
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
from tests.train.reference import Curves
from tests.warm import warm_rank

torch.set_num_threads(1)  # of tiny tensors two threads wait for each other more than they compute

Ask = Callable[..., Any]
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


@pytest.fixture(scope="session")
def ask() -> Ask:
    """The answer of a process that has imported all that ranks need (together.py)."""
    python = warm_rank()

    def asked(**question: object) -> Any:
        ran = subprocess.run(
            [python, "-c", "from tests.train.together import main; main()"],
            input=json.dumps(question), stdout=subprocess.PIPE, text=True, check=True,
            env=rank_environment(tiny_point(), os.environ), cwd=PROJECT,
        )  # fmt: skip
        return json.loads(ran.stdout.splitlines()[-1])

    return asked


@pytest.fixture
def run_ranks(ask: Ask, tmp_path: Path) -> Run:
    """Run a point on real ranks: their exit codes, what they left, and their logs."""

    def ran(point: Point) -> tuple[list[int], RankFiles, str]:
        directory = Path(tempfile.mkdtemp(dir=tmp_path))  # ranks must not meet an earlier store
        codes = ask(point=point.to_json(), directory=str(directory))
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
def learn(ask: Ask, request: pytest.FixtureRequest) -> Learn:
    """The losses of the ranks of a point, nothing measured.

    The first that is asked for is trained together with all others that selected tests which ask
    for some have as their parameter `point`.
    """
    curves: dict[str, Curves] = {}

    def train(points: list[Point]) -> None:
        answers = ask(points=[point.to_json() for point in points])
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
    """The points whose losses these tests ask for."""
    asking = (item for item in items if "learn" in getattr(item, "fixturenames", ()))
    calls = (item.callspec for item in asking if hasattr(item, "callspec"))
    return [call.params["point"] for call in calls if "point" in call.params]
