"""Which layouts run short steps, and what that costs."""

import pytest

from scaling.layout.layout import Layout
from scaling.study.short_steps import accumulations, micro_batches


def layout(**chosen):
    return Layout(**{"seq_length": 128, "gradient_accumulation_steps": 32, **chosen})


def test_a_pipeline_is_filled_runs_steadily_and_is_drained_in_its_short_steps():
    assert accumulations(layout()) == (2, 4, 6)
    assert accumulations(layout(pp=4)) == (8, 12, 16)
    assert accumulations(layout(pp=4, pipeline_schedule="dualpipev")) == (8, 12, 16)


def test_a_pipeline_of_an_engine_that_fixes_its_micro_batches_is_not_shortened():
    assert accumulations(layout(pp=4, engine="another")) == ()
    assert accumulations(layout(engine="another")) == (2, 4, 6)


@pytest.mark.parametrize("chosen", [{"pp": 8}, {"gradient_accumulation_steps": 6}])
def test_a_step_that_would_not_be_shorter_runs_in_full(chosen):
    assert accumulations(layout(**chosen)) == ()
    assert micro_batches(layout(**chosen), "short", warmup=3, steps=10) == micro_batches(
        layout(**chosen), "full", warmup=3, steps=10
    )


def test_a_point_costs_its_micro_batches():
    assert micro_batches(layout(), "full", warmup=3, steps=10) == 13 * 32
    assert micro_batches(layout(), "short", warmup=3, steps=10) == 3 * 2 + 5 * 12
    assert micro_batches(layout(), "both", warmup=3, steps=10) == 13 * 32 + 5 * 12
