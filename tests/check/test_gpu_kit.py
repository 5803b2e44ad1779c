"""The programs for a machine with a GPU and without network."""

import contextlib
import dataclasses
import importlib
import json
import math
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pyarrow.parquet
import pytest

from scaling.check.training import Machine
from scaling.record.files import write_rows
from scaling.record.row import Row
from scaling.study.point import Point
from tests.conftest import PROJECT
from tests.points import tiny_point
from tests.rows import row_of


@pytest.fixture
def kit(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(PROJECT / "benchmarks" / "gpu")
    return importlib.import_module("measure")


def machine(gpu: str, folder: Path) -> Machine:
    return Machine(gpu=gpu, cluster=gpu, ranks=1, folder=folder)


def test_results_are_written_with_the_traceback_of_a_layout_that_raises(
    kit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(machine: Machine, name: str, point: Point) -> Row:
        if name == "01":
            raise OSError("no room")
        logs = machine.folder / name / "point.logs"
        logs.mkdir(parents=True)
        (logs / "rank0.log").write_text("a step is not split: no kernel\n")
        server = machine.folder / ".host-1"
        server.mkdir(exist_ok=True)
        (server / "node0.log").write_text("a forked process cannot use the GPUs\n")
        return dataclasses.replace(row_of(point), point_id=name, outcome="ok", step_time_s=0.5)

    monkeypatch.setattr(Machine, "measure", measure)
    monkeypatch.setattr(kit, "warm_server", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(kit, "LAYOUTS", kit.LAYOUTS[:4])
    here, written = machine("h100-80gb", tmp_path), tmp_path / "rows.parquet"
    kit.measure_all(here, tmp_path, 0, math.inf)
    lines = [json.loads(line) for line in (tmp_path / "measured.jsonl").read_text().splitlines()]
    assert [line["outcome"] for line in lines] == ["ok", "no row", "ok", "ok"]
    assert "no room" in lines[1]["log"]
    assert lines[0]["log"].splitlines() == [
        "a step is not split: no kernel", "a forked process cannot use the GPUs",
    ]  # fmt: skip
    assert lines[0]["step_time_s"] == 0.5
    assert 0.1 < lines[0]["predicted_step_time_s"] < 1
    assert pyarrow.parquet.read_table(written)["point_id"].to_pylist() == ["00", "02", "03"]


def test_a_measured_step_stands_beside_the_time_of_its_products(
    kit: ModuleType, tmp_path: Path
) -> None:
    ok = dataclasses.replace(row_of(tiny_point()), point_id="07", outcome="ok", step_time_s=0.5)
    full, path = dataclasses.replace(ok, outcome="oom", step_time_s=None), tmp_path / "rows.parquet"
    assert kit.floors(path, 1e9) == []
    write_rows(path, [ok, full])
    flops = ok.matmul_flops_per_token * ok.global_batch_size * ok.seq_length
    assert kit.floors(path, flops / 0.4) == ["07: 0.500 s, at least 0.400"]


@pytest.mark.ranks
def test_the_kit_on_a_cpu_leaves_a_trace(kit: ModuleType, tmp_path: Path) -> None:
    kit.trace(machine("cpu", tmp_path / "scratch"), tmp_path)
    (kept,) = tmp_path.glob("*.trace.json.gz")
    assert 0 < kept.stat().st_size < 16 * 2**20


def test_an_environment_sees_its_own_and_the_carried_packages(
    tmp_path: Path,
) -> None:
    """An environment made from another one would not see its packages, torch among them."""
    wheel = tmp_path / "carried-1-py3-none-any.whl"
    about = {
        "METADATA": "Metadata-Version: 2.1\nName: carried\nVersion: 1\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(wheel, "w") as files:
        files.writestr("carried.py", "said = 'carried along'\n")
        for name, text in about.items():
            files.writestr(f"carried-1.dist-info/{name}", text)
    for folder in ("gpu-check", "benchmarks/gpu"):
        (tmp_path / folder).mkdir(parents=True)
    with tarfile.open(tmp_path / "gpu-check" / "wheels.tar.xz", "w:xz") as tar:
        tar.add(wheel, wheel.name)
    shutil.copy(PROJECT / "benchmarks" / "gpu" / "run.sh", tmp_path / "benchmarks" / "gpu")
    program = tmp_path / "benchmarks" / "gpu" / "measure.py"
    program.write_text(
        "import carried, duckdb\ndef gpu_here(): return 'h200-141gb'\n"
        "if __name__ == '__main__':\n    print(carried.said)\n    1 / 0\n"
    )
    (tmp_path / "benchmarks" / "training_step.py").write_text("import sys\nprint(sys.argv[1:3])\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.log").write_text("an earlier call\n")
    ran = subprocess.run(
        ["sh", "benchmarks/gpu/run.sh", "out", "measure", "beside", "nothing"],
        cwd=tmp_path, env=os.environ | {"PYTHON": sys.executable}, check=False,
    )  # fmt: skip
    assert ran.returncode == 0
    log = (tmp_path / "out" / "run.log").read_text()
    assert "an earlier call" in log
    assert "carried along" in log
    assert "ZeroDivisionError" in log
    assert "['--gpu', 'h200-141gb']" in log
    assert "there is no part nothing" in log
