"""How a rank ends: with its result, or with the outcome and the message of an exception.

Failures are recognized by the texts of torch's, NCCL's and the kernels' exceptions. Training and
probes share this, so that the same failure has the same outcome in both.
"""

import errno
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

import torch
import torch.distributed as dist

from scaling.cluster.hardware import GIB
from scaling.record.rank_files import RankFailure, RankFiles, Report
from scaling.record.row import Outcome
from scaling.study.point import Point

_LOSSES_LISTED = 10
_KEPT = 1000, 3000  # first and last characters of a message; a compiler's has 95,000


class KernelUnavailable(Exception):
    """A kernel or precision asked for by name is unavailable; nothing else is used instead."""


# Texts of the plain RuntimeErrors that allocators other than torch's own on a GPU raise.
_OUT_OF_MEMORY = (
    "out of memory",  # the CUDA runtime, its driver, Triton, and NCCL: "Cuda failure 2 '...'"
    "can't allocate memory",  # torch's CPU allocator
    "std::bad_alloc",
    "STATUS_ALLOC_FAILED",  # cuBLAS, and cuDNN up to 8
    "ALLOCATION_FAILED",  # cuDNN 9, of the device or the host
    "Failed to CUDA calloc",  # NCCL's last message, the only one that torch repeats
    "Failed to CUDA malloc",
    "Failed to CUDA host alloc",
)
# The first handle of cuBLAS or cuDNN in a full card reports it; else it is an error of its own.
_NO_HANDLE = ("CUBLAS_STATUS_NOT_INITIALIZED", "CUDNN_STATUS_NOT_INITIALIZED")
_HANDLE_BYTES = GIB // 2  # that a handle and its workspace may need
# Texts of torch's attention where the kernel asked for cannot run.
_NO_KERNEL = ("No available kernel", "No viable backend")
# Text of Triton's error, which torch's compiler passes on. Triton compiles what starts a kernel.
NO_C_COMPILER = "Failed to find C compiler"
# A stage of torch's pipelines raises this from any error of its forward, out of memory included.
_OF_A_STAGE = "failed to run forward"


def without_wrapping(error: BaseException) -> BaseException:
    """The error that a stage of torch's pipelines has wrapped in one of its own."""
    while _OF_A_STAGE in str(error) and error.__cause__ is not None:
        error = error.__cause__
    return error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device or the host ran out of memory.

    Limits that look like it do not count. Memory that may not be pinned (`ulimit -l`) and a full
    /dev/shm are settings of the machine, which a smaller model would hit as well.
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if not isinstance(error, RuntimeError):
        return False
    if any(text in str(error) for text in _OUT_OF_MEMORY):
        return True
    return any(text in str(error) for text in _NO_HANDLE) and free_bytes() < _HANDLE_BYTES


def free_bytes() -> float:
    """Bytes of the device that are free; infinite where it cannot say."""
    try:
        return float(torch.cuda.mem_get_info()[0])
    except (RuntimeError, AssertionError):  # no CUDA, or a broken one
        return math.inf


def is_no_kernel(error: RuntimeError) -> bool:
    """Whether torch cannot run the attention kernel that it was told to use."""
    return any(text in str(error) for text in _NO_KERNEL)


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
    first, last = _KEPT
    if len(message) > first + last:
        message = f"{message[:first]} ... {message[-last:]}"
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
