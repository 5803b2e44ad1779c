"""Compiled layers train the same, and no compiling is timed."""

import dataclasses

import pytest
import torch

from scaling.layout.engines import ENGINES
from scaling.train.failures import KernelUnavailable
from scaling.train.kernels.compiled import require_compiler
from tests.points import tiny_point
from tests.train.conftest import Attempt, Train
from tests.train.test_parity import compare


@pytest.mark.ranks
@pytest.mark.parametrize("engine", ENGINES)
def test_a_compiled_layout_trains_what_one_process_trains(train: Train, engine: str) -> None:
    point = tiny_point(
        engine=engine,
        compile=True,
        warmup_steps=2,
        measured_steps=8,
        tp=2,
        sequence_parallel=True,
        zero_stage=1,
        attention="flash2",
    )
    results = train(point).values()
    compare(point, [dataclasses.asdict(result) for result in results])
    for result in results:
        # the profiler sees the compiler's kernels, and not only the matrix products between them
        spent = result.spent
        assert spent is not None
        assert spent["compute_s"]
        # and whose collectives the compiled layers start, which never pass torch.distributed
        assert spent["tp_comm_s"] == pytest.approx(spent["comm_s"], rel=0.05)


@pytest.mark.ranks
def test_a_graph_compiled_within_the_measured_steps_ends_the_point(attempt: Attempt) -> None:
    (failure,) = attempt(
        tiny_point(
            compile=True,
            warmup_steps=0,
            measured_steps=1,
            zero_stage=3,
            activation_checkpointing="selective",
        )
    ).values()
    assert failure.outcome == "error"
    assert "compiled within the measured steps: warmup_steps=0" in failure.message


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", ("no-such-compiler",))
    with pytest.raises(KernelUnavailable, match=r"needs a C\+\+ compiler"):
        require_compiler(torch.device("cpu"))
