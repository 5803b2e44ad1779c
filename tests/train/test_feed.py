"""When a rank draws its data."""

import torch

from scaling.train.data import Feed, MicroBatch
from tests.train.reference import CPU


def test_the_host_draws_nothing_between_the_warm_up_and_the_last_step_that_counts() -> None:
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
    assert seen[0] == [2, 3, 4, 0]
    assert seen[1] == seen[2] == seen[3] == seen[4] == [2, 3, 4, 0, 1]
    assert seen[6] == [2, 3, 4, 0, 1, 5, 6]
