"""An exception of a training rank becomes an outcome and one line."""

import math
import time
from collections.abc import Sequence

from scaling.record.rank_files import RankFailure
from scaling.record.row import Outcome
from scaling.study.point import Point
from scaling.train.failures import KernelUnavailable, is_out_of_memory

_LOSSES_LISTED = 10


class Diverged(Exception):
    """The loss or the gradient is no number any more: what is timed trains nothing."""


def failure_of(error: BaseException) -> RankFailure:
    """The failure that this exception is; notes of its way up are part of the line."""
    text = " ".join([str(error), *getattr(error, "__notes__", ())])
    message = " ".join(text.split())
    outcome: Outcome = "error"
    if isinstance(error, KernelUnavailable):
        outcome = "kernel_unavailable"
    elif not isinstance(error, Diverged):
        message = f"{type(error).__name__}: {message}"
    if is_out_of_memory(error):
        outcome = "oom"
    return RankFailure(outcome=outcome, message=message, failed_at=time.time())


def require_finite(point: Point, losses: Sequence[float], grad_norm: float | None) -> None:
    """Check what the last step left.

    Args:
        point: that is trained.
        losses: of every step so far.
        grad_norm: of the last one, None where it is not known.

    Raises:
        Diverged: its loss or its gradient norm is infinite or not a number.
    """
    *before, last = losses
    named = {"loss": last, "gradient norm": 0.0 if grad_norm is None else grad_norm}
    wrong = [f"{name} is {value}" for name, value in named.items() if not math.isfinite(value)]
    if not wrong:
        return
    warming = ", a warm-up step," if len(before) < point.warmup_steps else ""
    listed = ", ".join(f"{loss:.4g}" for loss in before[-_LOSSES_LISTED:])
    cut = "..., " if len(before) > _LOSSES_LISTED else ""
    earlier = f"; losses before it: {cut}{listed}" if listed else ""
    raise Diverged(
        f"at step {len(before)} of {point.warmup_steps + point.measured_steps}{warming} the "
        f"{wrong[0]} in precision={point.layout.precision}, so this is no training that could be "
        f"timed{earlier}"
    )
