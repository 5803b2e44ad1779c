"""Exit codes of the real `scaling measure` are those that the real pack understands."""

import dataclasses
import json
import os
import re
import shlex
import signal
import sys
import threading
from pathlib import Path

import pytest
from snakemake_executor_plugin_submitit import pack as pack_module
from snakemake_executor_plugin_submitit.pack import Pack

from tests.executor.conftest import write_pack
from tests.points import tiny_point
from tests.processes import until

pytestmark = pytest.mark.usefixtures("keep_signal_handler")

LONG = tiny_point(measured_steps=100_000)
ON_GPU = dataclasses.replace(tiny_point(), gpu="h100-80gb")
IN_SLURM = {"SLURM_JOB_ID": "1", "SLURMD_NODENAME": "n7"}


def end_once_it_trains(folder):
    """In a thread: what a scheduler does that takes the nodes away."""
    beats = folder.parent.glob
    until(
        "it trains", lambda: any("step" in p.read_text() for p in beats("rows/*/.run-*/rank0.beat"))
    )
    os.kill(json.loads((folder / "0.running.json").read_text())["pid"], signal.SIGTERM)


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("point", "row", "environment", "why"),
    [
        (tiny_point(), "file/p.parquet", {}, "could not write its results"),
        (LONG, "rows/p.parquet", {}, "was ended from outside"),
        (ON_GPU, "rows/p.parquet", IN_SLURM, "cannot run on"),
    ],
    ids=["74", "75", "76"],
)
def test_a_point_that_could_not_be_judged_is_left_for_later(
    tmp_path, monkeypatch, point, row, environment, why
):
    (tmp_path / "point.json").write_text(point.to_json())
    (tmp_path / "file").touch()
    python = shlex.quote(sys.executable)
    measure = f"{python} -m scaling measure {tmp_path}/point.json {tmp_path}/{row}"
    here = {"directory": str(Path.cwd()), "environment": environment, "restarts": 0}
    folder = write_pack(tmp_path / "pack", measure, f"touch {tmp_path}/started", **here)
    monkeypatch.setattr(pack_module, "OUR_TURN_S", 0.0)
    if "outside" in why:
        threading.Thread(target=end_once_it_trains, args=[folder], daemon=True).start()
    with pytest.raises(SystemExit, match=re.escape(f"job 0 {why}")):
        Pack(folder)()
    assert not list(folder.glob("*.finished*"))
    assert not list(tmp_path.glob("rows/*.parquet"))
    assert not (tmp_path / "started").exists()
    assert (folder / "unusable.json").exists() == ("cannot run" in why)
