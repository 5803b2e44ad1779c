"""The place of a rank in the grid of its layout."""

import pytest

from scaling.layout.layout import Layout
from scaling.train.parallel.groups import Place


def test_tp_is_innermost_and_pp_outermost() -> None:
    layout = Layout(tp=2, dp=2, pp=2, seq_length=8)
    assert [
        (place.pp_rank, place.dp_rank, place.tp_rank)
        for place in (Place.of(rank, layout) for rank in range(8))
    ] == [
        (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "axes", [{"tp": 4}, {"pp": 2, "dp": 3}, {"tp": 2, "pp": 3, "cp": 2, "dp": 2}]
)
def test_every_rank_has_a_place_of_its_own(axes: dict[str, int]) -> None:
    layout = Layout(seq_length=8, **axes)
    places = {Place.of(rank, layout) for rank in range(layout.world_size)}
    assert len(places) == layout.world_size
