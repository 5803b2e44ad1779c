"""Ranks forked from a process that has imported all they need: the answer to a question.

A question is JSON on stdin. `point` and `directory`: measure it as real ranks do; the answer is
their exit codes. `points`: an act (acts.py) of the ranks of many layouts, one after another in one
launch, nothing measured: starting, meeting and the profiler's window take longer than ten steps of
a tiny model. Each layout makes its groups, its engine and its steps as a rank of its own would. One
that fails ends the launch: the rest goes on in another.
"""

import contextlib
import gc
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from scaling.cluster.node import RankId
from scaling.launch.start.local import rank_variables
from scaling.record.rank_files import RankFiles
from scaling.study.point import Point, point_from_json
from scaling.train.engines.deepspeed import engine as deepspeed_engine
from scaling.train.engines.torch import optimizer_step
from scaling.train.parallel.rendezvous import rendezvous
from scaling.train.program import run
from tests.points import LEARNING_RATE
from tests.train.acts import ACTS, CPU, TIMEOUT_S, Act
from tests.train.faults import FAULTS
from tests.train.reference import Curves


def main() -> None:
    """Answer the question on stdin."""
    for module in (deepspeed_engine, optimizer_step):
        vars(module)["LEARNING_RATE"] = LEARNING_RATE
    torch.set_num_threads(1)
    asked = json.load(sys.stdin)
    if "points" in asked:
        points = [point_from_json(each) for each in asked["points"]]
        act = ACTS[asked.get("act", "learn")]
        answer: Any = _acted_together(points, act, asked.get("fault"))
    else:
        point, directory = point_from_json(asked["point"]), Path(asked["directory"])
        measured = partial(run, point, RankFiles(directory))
        ranks = _fork(measured, point.layout.world_size, directory)
        answer = [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]
    sys.stdout.write(json.dumps(answer) + "\n")


def _acted_together(points: Sequence[Point], act: Act, fault: str | None) -> list[Curves]:
    """The finds of each point's ranks; all points have the same number of ranks.

    `fault`: of FAULTS, in every rank.
    """
    curves: list[Curves] = []
    with tempfile.TemporaryDirectory() as directory:
        while len(curves) < len(points):
            left, place = points[len(curves) :], Path(directory) / str(len(curves))
            curves += _launched(left, act, place, fault)
    return curves


def _launched(
    points: Sequence[Point], act: Act, directory: Path, fault: str | None
) -> list[Curves]:
    """Up to the first point that fails, which is the last of the list then."""
    directory.mkdir()
    world_size = points[0].layout.world_size
    waiting = {*_fork(partial(_act, points, act, directory, fault), world_size, directory)}
    while waiting:
        process, status = os.wait()
        if process not in waiting:  # of another test
            continue
        waiting.remove(process)
        if status:  # the others may wait for it for ever
            for other in waiting:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(other, signal.SIGTERM)
    done = []
    for index in range(len(points)):
        files = [directory / f"{index}.{rank}.json" for rank in range(world_size)]
        done.append([json.loads(f.read_text()) if f.exists() else {} for f in files])
        if any(not rank or "error" in rank for rank in done[-1]):
            break
    return done


def _fork(be: Callable[[RankId], object], world_size: int, directory: Path) -> list[int]:
    """Ranks that do this, each with a log in the folder: their pids."""
    ranks = []
    for rank in range(world_size):
        if child := os.fork():
            ranks.append(child)
            continue
        os.environ.update(rank_variables(rank, world_size))
        with (directory / f"rank{rank}.log").open("wb") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        be(RankId(rank=rank, local_rank=rank, world_size=world_size, master="127.0.0.1"))
        os._exit(1)
    return ranks


def _act(
    points: Sequence[Point], act: Act, directory: Path, fault: str | None, own: RankId
) -> NoReturn:
    index, code = 0, 1
    try:
        if fault is not None:
            FAULTS[fault]()
        port = rendezvous(own, RankFiles(directory), CPU, timeout_s=TIMEOUT_S).port
        for index, point in enumerate(points):
            _leave(directory / f"{index}.{own.rank}.json", act(point, own.rank, port))
            gc.collect()  # an engine is a ring of references, which keeps its threads and hooks
            _level_groups(own.rank)
        dist.barrier()
        code = 0
    except BaseException:
        _leave(directory / f"{index}.{own.rank}.json", {"error": traceback.format_exc()})
    os._exit(code)


def _level_groups(rank: int) -> None:
    """Let all ranks have as many groups: torch names a new one by how many a rank has.

    In a process of a point's own they do; DeepSpeed's pipelines leave some ranks more than others.
    """
    most = torch.tensor(len(dist.distributed_c10d._world.pg_names))
    dist.all_reduce(most, dist.ReduceOp.MAX)
    while len(dist.distributed_c10d._world.pg_names) < most:
        dist.new_group([rank], use_local_synchronization=True)


def _leave(path: Path, curve: dict[str, Any]) -> None:
    path.with_suffix(".part").write_text(json.dumps(curve))
    path.with_suffix(".part").rename(path)
