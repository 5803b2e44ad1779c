"""Many layouts, one after another, in one launch of ranks: what they learn, nothing measured.

Starting ranks, meeting and the profiler's window take longer than ten steps of a tiny model. The
ranks of a batch meet once; each layout makes its groups, its engine and its steps as a rank of its
own would. A layout that fails ends the launch: the rest goes on in another.
"""

import contextlib
import gc
import json
import os
import signal
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from scaling.cluster.node import RankId
from scaling.launch.start.local import rank_variables
from scaling.layout.engines import engine_module
from scaling.record.rank_files import RankFiles
from scaling.study.point import Point
from scaling.study.short_steps import short_step_sizes
from scaling.train.data import Feed
from scaling.train.engines.trainer import build, make_blueprint, replicas_agree
from scaling.train.parallel.groups import Groups
from scaling.train.parallel.rendezvous import rendezvous
from tests.train.faults import FAULTS

_CPU = torch.device("cpu")
_TIMEOUT_S = 60.0

Curves = list[dict[str, Any]]  # of each rank: its losses and gradient norms, or the reason


def trained_together(points: Sequence[Point], fault: str | None = None) -> list[Curves]:
    """The curves of each point's ranks; all points have the same number of ranks.

    `fault`: of FAULTS, in every rank.
    """
    curves: list[Curves] = []
    with tempfile.TemporaryDirectory() as directory:
        while len(curves) < len(points):
            curves += _launched(points[len(curves) :], Path(directory) / str(len(curves)), fault)
    return curves


def _launched(points: Sequence[Point], directory: Path, fault: str | None) -> list[Curves]:
    """Up to the first point that fails, which is the last of the list then."""
    directory.mkdir()
    world_size = points[0].layout.world_size
    ranks = [_fork(points, directory, rank, fault) for rank in range(world_size)]
    waiting = set(ranks)
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
        if not all("losses" in rank for rank in done[-1]):
            break
    return done


def _fork(points: Sequence[Point], directory: Path, rank: int, fault: str | None) -> int:
    child = os.fork()
    if not child:
        _be(points, directory, rank, fault)
    return child


def _be(points: Sequence[Point], directory: Path, rank: int, fault: str | None) -> NoReturn:
    index, code = 0, 1
    world_size = points[0].layout.world_size
    os.environ.update(rank_variables(rank, world_size))
    with (directory / f"{rank}.log").open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    own = RankId(rank=rank, local_rank=rank, world_size=world_size, master="127.0.0.1")
    try:
        if fault is not None:
            FAULTS[fault]()
        port = rendezvous(own, RankFiles(directory), _CPU, timeout_s=_TIMEOUT_S).port
        for index, point in enumerate(points):
            _leave(directory / f"{index}.{rank}.json", _curve(point, rank, port))
            gc.collect()  # an engine is a ring of references, which keeps its threads and hooks
            _level_groups(rank)
        dist.barrier()
        code = 0
    except BaseException:
        _leave(directory / f"{index}.{rank}.json", {"error": traceback.format_exc()})
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


def _curve(point: Point, rank: int, port: int) -> dict[str, Any]:
    engine_module(point.layout.engine, "engine").join(port)
    groups = Groups(rank, point.layout, timeout_s=_TIMEOUT_S)
    plan = make_blueprint(point, groups, _CPU)
    trainer = build(plan, groups)
    whole = point.layout.gradient_accumulation_steps
    short = () if point.accumulation == "full" else short_step_sizes(point.layout)
    counts = (*short, whole)  # in turns
    losses, norms = [], []
    steps = point.warmup_steps + point.measured_steps
    turns = [counts[step % len(counts)] for step in range(steps)]
    feed = Feed(point, groups.place, turns, first=0, device=_CPU)
    for step in range(steps):
        trainer.step(feed(step))
        losses.append(trainer.loss())
        norms.append(trainer.grad_norm())
    return {
        "losses": losses,
        "grad_norms": None if None in norms else norms,
        "replicas_agree": replicas_agree(trainer, groups, _CPU),
    }
