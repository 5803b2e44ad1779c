"""Imports torch and the engines once, then forks the ranks of one point after another.

A rank that starts from nothing imports for two seconds, a forked one for none: this is what makes
training every layout affordable. A line on stdin names a point and a folder; the answer is a line
with the ranks' exit codes. From there on the ranks run what real ones run. A line that names
several points is answered with what their ranks have learned (together.py).
"""

import gc
import json
import os
import sys
from pathlib import Path
from typing import NoReturn

import torch

from scaling.cluster.node import RankId
from scaling.launch.start.local import rank_variables
from scaling.layout.engines import ENGINES, engine_module
from scaling.record.rank_files import RankFiles
from scaling.study.point import Point, point_from_json
from scaling.train.engines.deepspeed import engine as deepspeed_engine
from scaling.train.engines.torch import optimizer_step
from scaling.train.program import run
from tests.train.reference import LEARNING_RATE
from tests.train.together import trained_together


def _fork(point: Point, directory: Path, rank: int) -> int:
    child = os.fork()
    if not child:
        _be(point, directory, rank)
    return child


def _be(point: Point, directory: Path, rank: int) -> NoReturn:
    world_size = point.layout.world_size
    os.environ.update(rank_variables(rank, world_size))
    with (directory / f"rank{rank}.log").open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    own = RankId(rank=rank, local_rank=rank, world_size=world_size, master="127.0.0.1")
    run(point, RankFiles(directory), own)


def main() -> None:
    for name in ENGINES:
        engine_module(name, "engine")
    for module in (deepspeed_engine, optimizer_step):
        vars(module)["LEARNING_RATE"] = LEARNING_RATE
    torch.set_num_threads(1)
    torch.optim.AdamW([torch.zeros(1)], fused=True)  # imports what a first optimizer imports
    gc.freeze()  # ranks that collect would walk, and copy, all that was imported
    for line in sys.stdin:
        asked = json.loads(line)
        if "points" in asked:
            points = [point_from_json(each) for each in asked["points"]]
            curves = trained_together(points, asked.get("fault"))
            sys.stdout.write(json.dumps(curves) + "\n")
            sys.stdout.flush()
            continue
        directory = Path(asked["directory"])
        point = point_from_json(asked["point"])
        children = [_fork(point, directory, rank) for rank in range(point.layout.world_size)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        sys.stdout.write(json.dumps(codes) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
