"""Which layouts run short steps, and what that costs."""

import pytest

from scaling.layout.layout import Layout
from scaling.study.short_steps import short_step_sizes, shuffled_rounds, total_micro_batches


def layout(**chosen):
    return Layout(**{"seq_length": 128, "gradient_accumulation_steps": 32, **chosen})


def test_short_steps_fill_run_and_drain_a_pipeline():
    assert short_step_sizes(layout()) == (2, 5, 8)
    assert short_step_sizes(layout(pp=4)) == (8, 16, 24)
    assert short_step_sizes(layout(pp=4, pipeline_schedule="dualpipev")) == (8, 16, 24)


@pytest.mark.parametrize("schedule", ["interleaved", "zero_bubble"])
def test_a_schedule_of_rounds_is_shortened_only_by_whole_rounds(
    schedule,
):
    chosen = {"pp": 4, "pipeline_schedule": schedule, "engine": "torch"}
    assert short_step_sizes(layout(**chosen)) == (8, 16, 24)
    assert short_step_sizes(layout(**chosen, gradient_accumulation_steps=30)) == ()


@pytest.mark.parametrize("chosen", [{"pp": 6}, {"gradient_accumulation_steps": 8}])
def test_a_step_that_would_not_be_shorter_runs_in_full(chosen):
    assert short_step_sizes(layout(**chosen)) == ()
    assert total_micro_batches(
        layout(**chosen), "short", warmup=3, steps=10
    ) == total_micro_batches(layout(**chosen), "full", warmup=3, steps=10)


def test_a_point_costs_its_micro_batches():
    assert total_micro_batches(layout(), "full", warmup=3, steps=10) == 13 * 32
    assert total_micro_batches(layout(), "short", warmup=3, steps=10) == 3 * 2 + 5 * 15
    assert total_micro_batches(layout(), "both", warmup=3, steps=10) == 13 * 32 + 5 * 15


def test_rounds_take_turns_at_random_and_every_rank_draws_the_same():
    turns = shuffled_rounds((2, 4, 6), 20, seed=3)
    rounds = [turns[at : at + 3] for at in range(0, 60, 3)]
    assert all(sorted(one) == [2, 4, 6] for one in rounds)
    assert len({tuple(one) for one in rounds}) > 3
    assert turns[:30] == shuffled_rounds((2, 4, 6), 10, seed=3)
    assert turns != shuffled_rounds((2, 4, 6), 20, seed=4)
