"""Which layers a stage of a pipeline holds."""

import pytest
import torch

from scaling.layout.layout import Layout
from scaling.train.engines.deepspeed.pipeline import stage_bounds
from scaling.train.engines.torch import refusals
from scaling.train.failures import KernelUnavailable
from scaling.train.kernels.availability import require_kernels
from scaling.train.parallel.tensor import TensorParallel
from tests.points import TINY, tiny_point
from tests.train.test_model import blueprint


def test_a_stage_begins_at_a_layer():
    """A model is a look-up, layers, a norm and a head."""
    assert stage_bounds((2, 1)) == [0, 3, 6]
    assert stage_bounds((1, 1, 1)) == [0, 2, 3, 6]


@pytest.mark.parametrize(
    ("schedule", "virtual_stages", "chunks"),
    [
        ("1f1b", 1, [(0,), (1,), (2,)]),
        ("interleaved", 2, [(0, 3), (1, 4), (2, 5)]),
        ("zero_bubble", 1, [(0,), (1,), (2,)]),
        ("zbv", 1, [(0, 5), (1, 4), (2, 3)]),
        ("dualpipev", 1, [(0, 5), (1, 4), (2, 3)]),
    ],
)
def test_a_rank_holds_every_pp_th_chunk_or_one_of_each_half(schedule, virtual_stages, chunks):
    from scaling.train.engines.torch.engine import chunks_of_rank  # imports torch's compiler

    layout = Layout(pp=3, pipeline_schedule=schedule, virtual_stages=virtual_stages, seq_length=8)
    assert [chunks_of_rank(layout, rank) for rank in range(3)] == chunks
    assert layout.model_chunks == len([chunk for rank in chunks for chunk in rank])


@pytest.mark.parametrize(("schedule", "splits"), [("1f1b", False), ("zbv", True)])
def test_the_model_is_told_of_a_backward_in_two_passes(monkeypatch, schedule, splits):
    from scaling.train.engines.torch import engine

    point = tiny_point(engine="torch", tp=2, pp=2, pipeline_schedule=schedule)
    told = []
    monkeypatch.setattr(engine, "PipelineTrainer", lambda plan, *_: told.append(plan.tp))
    engine.build(blueprint(point, TensorParallel(size=2)), None, print)
    assert [tp.splits_backward for tp in told] == [splits]


@pytest.mark.parametrize("schedule", ["zero_bubble", "zbv", "dualpipev"])
def test_a_torch_that_splits_a_backward_wrongly_is_asked_for_none(monkeypatch, schedule):
    """The place that asks for kernels: before the ranks meet."""

    def require(schedule, installed):
        monkeypatch.setattr(refusals, "version", lambda _: installed)
        point = tiny_point(engine="torch", pp=2, pipeline_schedule=schedule)
        require_kernels(TINY, point.layout, torch.device("cpu"))

    require(schedule, "2.13.0+cu130")
    require("1f1b", "2.11.0+cu130")
    with pytest.raises(
        KernelUnavailable,
        match=rf"pipeline_schedule={schedule} needs torch >= 2.13, this is 2.9.1",
    ):
        require(schedule, "2.9.1")
