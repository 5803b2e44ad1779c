"""Short steps on real ranks: they train as full ones do, and say what these last."""

import dataclasses

import pytest

from scaling.record.extension import estimate_full_step
from scaling.study.point import Point
from scaling.study.short_steps import short_step_sizes, shuffled_rounds
from tests.points import tiny_point
from tests.train.conftest import Learn, Train
from tests.train.reference import reference_curve

pytestmark = [pytest.mark.ranks]


def short_point(accumulation: str = "short", **changes: object) -> Point:
    asked = {"gradient_accumulation_steps": 16, "micro_batch_size": 1, "warmup_steps": 1}
    point = tiny_point(**(asked | changes))  # type: ignore[arg-type]
    return dataclasses.replace(point, accumulation=accumulation)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "layouts",
    [
        [{"zero_stage": 0}, {"zero_stage": 3}, {"zero_stage": 1, "tp": 2}],
        [
            {"zero_stage": 1, "pp": 2},
            {"zero_stage": 1, "pp": 2, "pipeline_schedule": "dualpipev"},
        ],
    ],
)
def test_short_steps_reduce_and_update_as_full_ones_in_every_layout(
    train: Train, layouts: list[dict[str, object]]
) -> None:
    losses = []
    for layout in layouts:
        results = train(short_point(**layout))
        first = results[0]
        counts = [4, 8, 12] if "pp" in layout else [2, 5, 8]
        assert first.short_accumulations == shuffled_rounds(counts, 5, seed=1)
        assert first.short_step_times_s is not None
        extension = estimate_full_step(first.short_accumulations, first.short_step_times_s, 16)
        assert extension is not None
        # where times lie on no line, as on a busy machine they may not, full steps follow
        assert len(first.step_times_s) == (0 if extension.linear else 10)
        assert first.stopped == "asked"
        assert first.losses is None
        assert first.short_losses is not None
        assert len(first.short_losses) == 1 + 15 + (0 if extension.linear else 1 + 10)
        losses.append(first.short_losses[: 1 + 15])
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], abs=2e-5)
    assert losses[0][-1] < losses[0][0]  # weights are updated


def in_turns(**layout: object) -> Point:
    return short_point("both", zero_stage=1, pp=2, measured_steps=4, **layout)


@pytest.mark.parametrize(
    "point",
    [
        in_turns(engine="torch"),
        in_turns(engine="torch", pipeline_schedule="interleaved", virtual_stages=2),
        in_turns(engine="torch", pipeline_schedule="zero_bubble", virtual_stages=2),
        in_turns(engine="torch", pipeline_schedule="zbv"),
        in_turns(engine="torch", pipeline_schedule="dualpipev"),
        in_turns(pipeline_schedule="dualpipev"),
    ],
    ids=lambda point: point.layout.label,
)
def test_every_schedule_trains_alike_when_short_and_full_steps_take_turns(
    learn: Learn, point: Point
) -> None:
    assert short_step_sizes(point.layout) == (4, 8, 12)
    losses = learn(point)[0]["losses"]
    assert len(losses) == 5
    assert losses == pytest.approx(learn(in_turns())[0]["losses"], abs=2e-5)


def test_a_point_of_both_kinds_has_the_losses_of_its_full_steps_alone(train: Train) -> None:
    point = short_point("both", zero_stage=2)
    both = train(point)[0]
    alone = dataclasses.replace(point, layout=tiny_point(micro_batch_size=16).layout)
    assert both.losses == pytest.approx(reference_curve(alone).losses, abs=1e-5)
    assert len(both.step_times_s) == 10
    assert both.short_accumulations == shuffled_rounds([2, 5, 8], 5, seed=1)
    assert both.short_step_times_s is not None
    extension = estimate_full_step(both.short_accumulations, both.short_step_times_s, 16)
    assert extension is not None
    assert extension.low_s <= extension.step_time_s <= extension.high_s


def test_ranks_stop_together_once_their_median_is_precise_enough(train: Train) -> None:
    # ten times the median: any steps are precise enough, and none but the least are run
    point = dataclasses.replace(
        tiny_point(dp=2, warmup_steps=2, measured_steps=40), at_least_steps=5, until=10.0
    )
    results = train(point)
    first = results[0]
    assert first.warmup_steps is not None
    # some of the five may have been warm-up still, and were replaced
    assert 5 <= len(first.step_times_s) < 40
    assert {len(result.step_times_s) for result in results.values()} == {len(first.step_times_s)}
    assert first.losses is not None
    assert len(first.losses) == first.warmup_steps + len(first.step_times_s)
    assert first.metered_steps == len(first.losses) - 2
