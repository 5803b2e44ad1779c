"""When a rank draws its data."""

import torch

from scaling.train.data import Feed, MicroBatch
from tests.train.reference import CPU


def test_the_host_draws_nothing_between_the_steps_that_count() -> None:
    drawn: list[int] = []

    def draw(step: int) -> list[MicroBatch]:
        drawn.append(step)
        return [(torch.tensor([step]), torch.tensor([step + 1]))]

    feed = Feed(draw, counted=range(2, 5), device=CPU)
    seen = []
    for step in range(7):  # two to warm up, three that count, two under the profiler
        ((ids, labels),) = feed(step)
        assert (ids.item(), labels.item()) == (step, step + 1)
        seen.append(list(drawn))
    assert seen[:2] == [[0], [0, 1]]
    assert seen[2] == seen[3] == seen[4] == [0, 1, 2, 3, 4]
    assert seen[6] == [0, 1, 2, 3, 4, 5, 6]
