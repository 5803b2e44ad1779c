"""`python -m scaling.probe PLAN.json DIRECTORY`: one rank, given by RANK and its like."""

import faulthandler
import os
import signal
import sys
from pathlib import Path

from scaling.cluster.hardware import gpu_named
from scaling.cluster.node import bind_rank, rank_id_of
from scaling.probe.plan import plan_from_json
from scaling.record.rank_files import RankFiles


def main() -> None:
    """Probe and leave records or a failure in the directory; the exit code says which."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the parent asks where it hangs
    plan, directory = sys.argv[1:]
    files = RankFiles(Path(directory))
    files.beat(int(os.environ["RANK"]), "importing")
    what = plan_from_json(Path(plan).read_text(encoding="utf-8"))
    bind_rank(os.environ, on_gpu=gpu_named(what.gpu).vendor == "nvidia")
    from scaling.probe.program import run

    run(what, files, rank_id_of(os.environ))


if __name__ == "__main__":
    main()
