"""A python for tests of workflows that has imported already."""

import atexit
import functools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Ranks import these: ours, those of probes, and transformers' Trainer.
RANKS = (
    "accelerate", "scaling.probe.program", "scaling.train.engines.deepspeed.engine",
    "scaling.train.engines.torch.engine", "scaling.train.program", "torch.distributed.fsdp",
    "transformers.trainer",
)  # fmt: skip


def warm_rank() -> str:
    """A warm python that has imported what ranks import, for tests in which no GPU matters."""
    return warm_python(*RANKS)


@functools.cache
def warm_python(*modules: str) -> str:
    """The program that is called as `sys.executable` is; server.py says how far it is the same.

    It has imported these modules; if none is given, what the verbs of a study import.
    """
    folder = tempfile.TemporaryDirectory()
    command = [sys.executable, "-m", "tests.warm.server", folder.name, *modules]
    server = subprocess.Popen(
        command,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"} if modules else None,
    )
    python = Path(folder.name, "python")
    while not python.exists():
        assert server.poll() is None, "the server of warm pythons did not start"
        time.sleep(0.05)

    def end() -> None:
        server.kill()
        server.wait()
        folder.cleanup()

    atexit.register(end)
    return str(python)
