"""Points of Llama-7B on A100s, and a sweep that a reference model made."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from scaling.importing.reader import Table, read_table
from scaling.predict.cost import communication, compute
from scaling.predict.cost.communication import Traffic, traffic_of
from scaling.predict.cost.memory import memory_of
from scaling.predict.cost.own_memory import Memory
from scaling.predict.cost.stages import stages_of
from scaling.predict.cost.step import Step, step_of
from scaling.predict.fit.calibrate import calibrate
from scaling.predict.read import stacks
from scaling.predict.read.calibration import Calibration, StackCalibration
from scaling.predict.read.features import Points
from scaling.predict.read.observed import observed_of
from scaling.predict.read.points import points_of
from scaling.predict.read.stacks import Stack
from tests.predict import reference

SHAPE = {
    "framework": "plain",  # software without a fact, see `plain_software`
    "model": "llama-7b",
    "num_layers": 32,
    "hidden_size": 4096,
    "num_heads": 32,
    "ffn_hidden_size": 11008,
    "gated_mlp": True,
    "vocab_size": 32000,
    "seq_length": 4096,
    "cluster": "a100-80gb-dgx",
}


def table_of(*rows: dict[str, Any]) -> pa.Table:
    """Llama-7B on A100, one point a dict; what a dict does not say is an empty cell."""
    names = list(dict.fromkeys([*SHAPE, *(name for row in rows for name in row)]))
    return pa.table({n: pa.array([{**SHAPE, **row}.get(n) for row in rows]) for n in names})


def as_table(rows: pa.Table, source: str = "t") -> Table:
    """The rows as the reader of tables gives them."""
    return Table(rows, source, np.arange(1, rows.num_rows + 1))


def checked(*rows: dict[str, Any], **more: Any) -> Points:
    """checked(dict(tp=2), dict(tp=4)): Llama-7B on A100, one point a dict."""
    return points_of(as_table(table_of(*rows), "points.csv"), **more)


@pytest.fixture
def points() -> Callable[..., Points]:
    return checked


# Llama-7B: per layer 4 h^2 + 3 h f, two vocabulary matrices
LAYER = 4 * 4096**2 + 3 * 4096 * 11008
HEAD = 32000 * 4096
PARAMS = 32 * LAYER + 2 * HEAD

# A machine without overheads: every rate at the data sheet, every latency gone (`no_overheads`).
IDEAL = {
    "gemm_efficiency": 1.0, "gemm_half_size": 1e-9, "tp_exposed": 1.0, "link_efficiency": 1.0,
    "network_efficiency": 1.0, "dp_exposed": 1.0, "host_layer_s": 1e-12, "host_collective_s": 0.0,
    "host_transport_s": 0.0, "norm_passes": 0.0, "norm_passes_fused": 0.0,
}  # fmt: skip


def memory(points: Points, **parameters: float) -> Memory:
    """The memory of points of one group."""
    (group,) = points.groups
    return memory_of(group, group.features, {**group.start, **parameters})


def ideal_step(points: Points, **parameters: float) -> Step:
    """The step of points of one group on a machine without overheads."""
    (group,) = points.groups
    p = {**group.start, **IDEAL, **parameters}
    return step_of(group, group.features, p, np.zeros(len(group.features)))


def traffic(points: Points, **parameters: float) -> Traffic:
    """The traffic of points of one group on that machine."""
    (group,) = points.groups
    stages = stages_of(group.features, group.stack)
    return traffic_of(group, group.features, {**group.start, **IDEAL, **parameters}, stages)


@pytest.fixture(scope="session", autouse=True)
def plain_software() -> Iterator[None]:
    """An entry of STACKS that says nothing, so that arithmetic by hand needs no facts."""
    with pytest.MonkeyPatch.context() as patch:
        plain = Stack(name="plain", source="tests")
        patch.setattr(stacks, "STACKS", (*stacks.STACKS, plain))
        stacks._stack_of.cache_clear()
        yield
    stacks._stack_of.cache_clear()


@pytest.fixture(scope="module")
def no_overheads() -> Iterator[None]:
    """Constants of the formulas as on a machine whose links and kernels lose nothing."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in (
            (communication, "TP_LATENCY_S", 0.0),
            (communication, "_TP_NETWORK_LATENCY_S", 0.0),
            (communication, "_MESSAGE_LATENCY_S", 0.0),
            (communication, "_MESSAGE_EFFICIENCY", 1.0),
            (compute, "_LOGIT_PASSES", 0.0),
            (compute, "_PASSES", 0.0),
            (communication, "_HOST_WAITS_S", 0.0),
            (compute, "_GROUPED", 1.0),
        ):
            patch.setattr(module, name, value)
        yield


@pytest.fixture(scope="session")
def sweep_csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep made by the reference step model."""
    return reference.write_csv(tmp_path_factory.mktemp("sweep") / "rows.csv", reference.rows())


@pytest.fixture(scope="session")
def sweep(sweep_csv: Path) -> pa.Table:
    return read_table(sweep_csv).rows


def fitted_on(table: pa.Table, **options: Any) -> Calibration:
    given = as_table(table, "rows.csv")
    return calibrate(points_of(given), observed_of(given), source="rows.csv", **options)


@pytest.fixture(scope="session")
def calibrated(sweep: pa.Table) -> Calibration:
    return fitted_on(sweep)


def only(calibration: Calibration) -> StackCalibration:
    (stack,) = calibration.stacks.values()
    return stack
