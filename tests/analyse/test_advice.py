"""Advice names as few layouts as the noise allows."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from scaling.analyse.advice import fewest_switches

layouts = st.dictionaries(st.sampled_from("abcd"), st.floats(0.9, 1.0), min_size=1)
studies = st.dictionaries(st.sampled_from([1, 2, 4, 8, 16]), layouts, min_size=1)


def test_a_layout_within_the_noise_everywhere_is_kept():
    good = {1: {"a": 1.0, "b": 0.99}, 2: {"b": 1.0}, 4: {"a": 0.99, "b": 1.0}}
    assert fewest_switches(good) == {1: "b", 2: "b", 4: "b"}


def test_advice_changes_where_it_must():
    good = {1: {"a": 1.0}, 2: {"a": 1.0, "b": 0.99}, 4: {"b": 1.0}}
    assert fewest_switches(good) == {1: "a", 2: "a", 4: "b"}


def test_of_two_good_ones_the_faster_is_named():
    assert fewest_switches({1: {"a": 0.98, "b": 1.0}}) == {1: "b"}


def test_of_two_that_are_the_same_training_the_one_with_less_to_name_is_advised():
    same = {"pp2 zero1": 1.0, "pp2 sp zero1": 1.0}
    assert fewest_switches({8: same, 16: same}) == {8: "pp2 zero1", 16: "pp2 zero1"}


def test_no_size_no_advice():
    assert fewest_switches({}) == {}
    assert fewest_switches({1: {}}) == {}


@given(studies)
def test_every_size_is_advised_once_with_a_layout_that_is_good_there(good):
    advised = fewest_switches(good)
    assert list(advised) == sorted(good)
    assert all(layout in good[size] for size, layout in advised.items())


@given(studies)
def test_no_advice_needs_fewer_stretches(good):
    sizes = sorted(good)

    def fewest(start: int) -> int:
        if start == len(sizes):
            return 0
        ends = range(start + 1, len(sizes) + 1)
        covered = [e for e in ends if set.intersection(*(set(good[s]) for s in sizes[start:e]))]
        return 1 + min(fewest(end) for end in covered)

    stretches = list(itertools.groupby(fewest_switches(good).values()))
    assert len(stretches) == fewest(0)
