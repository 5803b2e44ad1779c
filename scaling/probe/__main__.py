"""`python -m scaling.probe PLAN.json DIRECTORY`: one rank, seated by RANK and its like."""

import faulthandler
import os
import signal
import sys
from pathlib import Path

from scaling.hardware import gpu_named
from scaling.node import settle
from scaling.probe.plan import plan_from_json
from scaling.rank_files import RankFiles


def main() -> None:
    """Probe, and leave records or a failure. The exit code only says which of the two."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the parent asks where a rank hangs
    plan, directory = sys.argv[1:]
    files = RankFiles(Path(directory))
    files.beat(int(os.environ["RANK"]), "importing")
    what = plan_from_json(Path(plan).read_text(encoding="utf-8"))
    settle(os.environ, on_gpu=gpu_named(what.gpu).vendor == "nvidia")
    from scaling.meeting import seat_of_environment
    from scaling.probe.program import run

    run(what, files, seat_of_environment())


if __name__ == "__main__":
    main()
