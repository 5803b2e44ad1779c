"""A rank's batches, at hand when a step wants them."""

from collections.abc import Callable

import torch

from scaling.train.data import MicroBatch


class Feed:
    """Draws the batches of the warm-up when they are asked for, and those that count beforehand.

    Drawing is the host's work, milliseconds in which a GPU would idle between two measured steps
    while its energy is counted. What was drawn waits on the host: it is no part of the memory that
    the layout needs.

    Args:
        draw: the micro-batches of a step, on the host.
        counted: the steps whose batches are drawn together, before the first of them.
        device: where they are handed out.
    """

    def __init__(
        self,
        draw: Callable[[int], list[MicroBatch]],
        *,
        counted: range,
        device: torch.device,
    ) -> None:
        self._draw, self._counted, self._device = draw, counted, device
        self._ready: dict[int, list[MicroBatch]] = {}

    def __call__(self, step: int) -> list[MicroBatch]:
        """The batches of this step, which are handed out once."""
        if self._counted and step == self._counted[0]:
            self._ready = {each: self._draw(each) for each in self._counted}
        drawn = self._ready.pop(step) if step in self._ready else self._draw(step)
        return [(ids.to(self._device), labels.to(self._device)) for ids, labels in drawn]
