import pytest

from scaling.layout import Layout
from scaling.train.trace import axis_of
from scaling.train.window import AXES, KINDS
from tests.points import tiny_point
from tests.train.conftest import Train

CUBE = Layout(tp=2, cp=2, dp=2, pp=2, seq_length=8)


@pytest.mark.parametrize(
    ("ranks", "axis"),
    [
        ([0, 1], "tp"),
        ([0, 2], "cp"),
        ([0, 4], "dp"),
        ([0, 8], "pp"),
        ([0, 2, 4, 6], "dp"),  # gradients: the same weights, other tokens
        (list(range(16)), "pp"),
        ([3], None),
    ],
)
def test_a_group_is_named_for_the_outermost_degree_it_spans(
    ranks: list[int], axis: str | None
) -> None:
    assert axis_of(ranks, CUBE) == axis


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("layout", "kinds", "axes"),
    [
        ({}, set(), set()),
        ({"dp": 2, "zero_stage": 3}, {"all_gather", "reduce_scatter"}, {"dp"}),
        (
            {"tp": 2, "sequence_parallel": True, "zero_stage": 1},
            {"all_gather", "reduce_scatter", "all_reduce"},
            {"tp"},
        ),
        ({"cp": 2, "zero_stage": 1}, {"all_to_all", "all_gather"}, {"cp"}),
        ({"pp": 2, "gradient_accumulation_steps": 4}, {"send_recv"}, {"pp"}),
    ],
    ids=str,
)
def test_a_step_is_split_by_what_its_layout_exchanges(
    train: Train, layout: dict[str, int], kinds: set[str], axes: set[str]
) -> None:
    for result in train(tiny_point(measured_steps=2, **layout)).values():
        spent = result.spent
        assert spent is not None
        assert kinds <= {kind for kind in KINDS if spent[f"{kind}_s"] > 0}
        assert axes == {axis for axis in AXES if spent[f"{axis}_comm_s"] > 0}
        assert spent["compute_s"] > 0
        assert 0 <= spent["exposed_comm_s"] <= spent["comm_s"] + 1e-9  # rounded sums
        assert spent["idle_s"] > 0
        assert (spent["pipeline_bubble_s"] > 0) == ("pp" in layout)


@pytest.mark.ranks
def test_the_window_adds_no_step_to_what_is_timed_or_learned(train: Train) -> None:
    for result in train(tiny_point(dp=2, warmup_steps=1, measured_steps=2)).values():
        assert (len(result.step_times_s), len(result.losses)) == (2, 3)


@pytest.mark.ranks
def test_no_window_is_opened_where_the_time_limit_is_near(train: Train) -> None:
    """The margin for a slow start is 10 s, so nothing is left of this limit."""
    results = train(tiny_point(dp=2, measured_steps=2, time_limit_s=10.0))
    assert [result.spent for result in results.values()] == [None, None]
