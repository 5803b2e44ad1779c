"""Arithmetic of spans of time, against sets of instants."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.train.measure.window import as_spans, clip, covered_s, uncovered_s, union

pairs = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda p: (p[0], p[0] + p[1])), max_size=12
)


def instants(drawn: list[tuple[int, int]]) -> set[int]:
    """The same spans as the unit intervals they cover: what arithmetic on sets can check."""
    return {at for start, end in drawn for at in range(start, end)}


@given(pairs)
def test_the_total_counts_every_instant_once(drawn: list[tuple[int, int]]) -> None:
    assert covered_s(as_spans(drawn)) == len(instants(drawn))


@given(pairs)
def test_a_union_is_disjoint_and_in_order(drawn: list[tuple[int, int]]) -> None:
    disjoint = union(as_spans(drawn))
    assert (disjoint[:, 1] > disjoint[:, 0]).all()
    assert (disjoint[1:, 0] > disjoint[:-1, 1]).all()


@given(pairs, pairs)
def test_clipping_keeps_what_both_cover(
    drawn: list[tuple[int, int]], window: list[tuple[int, int]]
) -> None:
    kept = clip(as_spans(drawn), as_spans(window))
    assert covered_s(kept) == len(instants(drawn) & instants(window))


@given(pairs, pairs)
def test_uncovered_is_what_only_the_first_covers(
    drawn: list[tuple[int, int]], cover: list[tuple[int, int]]
) -> None:
    left = uncovered_s(as_spans(drawn), as_spans(cover))
    assert left == pytest.approx(len(instants(drawn) - instants(cover)))
