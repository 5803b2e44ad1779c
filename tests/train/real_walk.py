"""The walk of a rehearsal on real tensors and real ranks: a line names a point, one answers."""

import dataclasses
import gc
import json
import os
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import NoReturn
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn import functional

from scaling.launch.start.local import rank_variables
from scaling.layout.engines import ENGINES, engine_module
from scaling.study.point import Point, point_from_json
from scaling.train.parallel.groups import Groups
from scaling.train.rehearsal.rehearsal import run_steps
from scaling.train.rehearsal.standins import rms_norm
from scaling.train.rehearsal.waits import Waits
from tests.points import WALKED_STEPS


def _be(point: Point, rank: int, folder: Path) -> NoReturn:
    code = 1
    try:
        size = point.layout.world_size
        os.environ |= rank_variables(rank, size) | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        waits = Waits()
        engine_module(point.layout.engine, "rehearsal").act_like_cuda(waits.note)
        store = dist.FileStore(str(folder / "store"), size)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        engine_module(point.layout.engine, "engine").join(0)
        groups = Groups(rank, point.layout, timeout_s=60)
        with (
            mock.patch.object(torch.Tensor, "record_stream", return_value=None),
            mock.patch.object(functional, "rms_norm", rms_norm),
        ):
            found = run_steps(point, groups, waits, steps=WALKED_STEPS)
        answer = json.dumps(dataclasses.asdict(found.memory))
        (folder / f"rank{rank}").write_text(answer)
        dist.barrier()
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # DeepSpeed prints
    for name in ENGINES:
        engine_module(name, "rehearsal")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    gc.freeze()
    for line in sys.stdin:
        point = point_from_json(line)
        with tempfile.TemporaryDirectory() as made:
            folder, children = Path(made), []
            for rank in range(point.layout.world_size):
                child = os.fork()
                if not child:
                    _be(point, rank, folder)
                children.append(child)
            failed = [os.waitpid(child, 0)[1] for child in children]
            if any(failed):
                sys.exit(f"ranks of {point.layout.label} failed")
            found = [
                json.loads((folder / f"rank{rank}").read_text()) for rank in range(len(failed))
            ]
        answers.write(json.dumps(found) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
