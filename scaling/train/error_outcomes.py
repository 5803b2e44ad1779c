"""How a rank ends: with its result, or with the outcome and the message of an exception."""

import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

import torch.distributed as dist

from scaling.record.rank_files import RankFailure, RankFiles, Report
from scaling.record.row import Outcome
from scaling.study.point import Point
from scaling.train.failures import (
    NO_C_COMPILER,
    KernelUnavailable,
    is_out_of_memory,
    without_wrapping,
)

_LOSSES_LISTED = 10


class Diverged(Exception):
    """The loss or the gradient norm is not finite: the timed steps train nothing."""


def leave(rank: int, files: RankFiles, work: Callable[[], Report]) -> NoReturn:
    """Do this rank's work, leave its result or a failure, and end the process.

    It ends without the interpreter's clean-up: gloo's threads can abort there, and a rank that has
    failed must not wait for the others.
    """
    code = 0
    try:
        files.write(rank, work())
        # With gloo a rank that exits early can abort ranks that still talk to it. Groups, of which
        # there may be hundreds, are not destroyed; they end with the process.
        dist.barrier()
    except BaseException as error:
        traceback.print_exc()
        files.write(rank, failure_of(error))
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def failure_of(error: BaseException) -> RankFailure:
    """The failure that this exception describes, its notes included."""
    error = without_wrapping(error)
    text = " ".join([str(error), *getattr(error, "__notes__", ())])
    message = " ".join(text.split())
    outcome: Outcome = "error"
    if isinstance(error, KernelUnavailable):
        outcome = "kernel_unavailable"
    elif NO_C_COMPILER in text:
        outcome = "kernel_unavailable"
        message = "compile and the fused_* kernels need a C compiler on every GPU node (gcc, or CC)"
    elif not isinstance(error, Diverged):
        message = f"{type(error).__name__}: {message or 'no memory was left, or no reason given'}"
    if is_out_of_memory(error):
        outcome = "oom"
    return RankFailure(outcome=outcome, message=message, failed_at=time.time())


def require_finite(point: Point, losses: Sequence[float], grad_norm: float | None) -> None:
    """Check the last step's loss and gradient norm.

    Args:
        point: that is trained.
        losses: of every step so far.
        grad_norm: of the last step, None where unknown.

    Raises:
        Diverged: the loss or the gradient norm is infinite or not a number.
    """
    *before, last = losses
    values = {"loss": last, "gradient norm": 0.0 if grad_norm is None else grad_norm}
    wrong = [f"{name} is {value}" for name, value in values.items() if not math.isfinite(value)]
    if not wrong:
        return
    in_warmup = ", a warm-up step," if len(before) < point.warmup_steps else ""
    listed = ", ".join(f"{loss:.4g}" for loss in before[-_LOSSES_LISTED:])
    ellipsis = "..., " if len(before) > _LOSSES_LISTED else ""
    earlier = f"; losses before it: {ellipsis}{listed}" if listed else ""
    raise Diverged(
        f"at step {len(before)} of {point.warmup_steps + point.measured_steps}{in_warmup} the "
        f"{wrong[0]} in precision={point.layout.precision}, so this is no training that could be "
        f"timed{earlier}"
    )
