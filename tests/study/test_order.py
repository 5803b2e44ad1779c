"""A random order that a study's seed fixes."""

from scaling.run.plan_writer import random_fraction

NAMES = [f"p{number}" for number in range(40)]


def shuffled(names, seed):
    return sorted(names, key=lambda name: random_fraction(seed, name))


def test_the_order_is_random_and_the_seeds():
    first = shuffled(NAMES, 1)
    assert sorted(first) == sorted(NAMES)
    assert first != NAMES
    assert first == shuffled(reversed(NAMES), 1)
    assert first != shuffled(NAMES, 2)


def test_a_point_that_comes_moves_no_other():
    with_another = shuffled([*NAMES, "another"], 1)
    assert [name for name in with_another if name != "another"] == shuffled(NAMES, 1)


def test_purposes_draw_for_themselves():
    assert random_fraction(1, "p1") != random_fraction(1, "p1", "in full")
    assert 0 <= random_fraction(1, "p1") < 1
