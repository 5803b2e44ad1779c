"""`python -m scaling.train POINT.json DIRECTORY`: one rank, given by RANK and its like."""

import faulthandler
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from scaling.cluster.hardware import gpu_named
from scaling.cluster.node import bind_rank, rank_id_of
from scaling.layout.engines import engine_module
from scaling.record.rank_files import RankFailure, RankFiles
from scaling.study.point import point_from_json


def main() -> None:
    """Train and leave a result or a failure in the directory; the exit code says which."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the parent asks where it hangs
    point_path, directory = sys.argv[1:]
    rank = int(os.environ["RANK"])
    files = RankFiles(Path(directory))
    files.beat(rank, "importing")
    point = point_from_json(Path(point_path).read_text(encoding="utf-8"))
    bind_rank(os.environ, on_gpu=gpu_named(point.gpu).vendor == "nvidia")
    rank_id = rank_id_of(os.environ)
    try:
        import torch

        from scaling.train.program import run

        engine_module(point.layout.engine, "engine")
    except ImportError as error:
        traceback.print_exc()
        message = f"{type(error).__name__}: {error}"
        files.write(
            rank, RankFailure(outcome="launch_failed", message=message, failed_at=time.time())
        )
        sys.exit(1)
    if threads := os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))  # which a forked rank's imports read too early
    run(point, files, rank_id)


if __name__ == "__main__":
    main()
