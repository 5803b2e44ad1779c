"""Stages begin at layers and learn of a split backward, which losses do not show."""

import pytest

from scaling.train.engines.deepspeed.pipeline import stage_bounds
from scaling.train.parallel.tensor import TensorParallel
from tests.points import tiny_point
from tests.train.test_model import blueprint


def test_a_stage_begins_at_a_layer():
    """A model is a look-up, layers, a norm and a head."""
    assert stage_bounds((2, 1)) == [0, 3, 6]
    assert stage_bounds((1, 1, 1)) == [0, 2, 3, 6]


@pytest.mark.parametrize(("schedule", "splits"), [("1f1b", False), ("zbv", True)])
def test_the_model_is_told_of_a_backward_in_two_passes(monkeypatch, schedule, splits):
    from scaling.train.engines.torch import engine  # imports torch's compiler

    point = tiny_point(engine="torch", tp=2, pp=2, pipeline_schedule=schedule)
    told = []
    monkeypatch.setattr(engine, "PipelineTrainer", lambda plan, *_: told.append(plan.tp))
    engine.build(blueprint(point, TensorParallel(size=2)), None, print)
    assert [tp.splits_backward for tp in told] == [splits]
