"""An exception becomes an outcome and one line."""

import time

import torch

from scaling.measurement import Outcome
from scaling.rank_files import RankFailure


class KernelUnavailable(Exception):
    """A kernel or a precision was asked for by name and is not there; nothing stands in for it."""


# What allocators other than CUDA's own say, which raise a plain RuntimeError.
_OUT_OF_MEMORY = (
    "can't allocate memory",  # torch's CPU allocator
    "std::bad_alloc",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


def failure_of(error: BaseException) -> RankFailure:
    """The failure that this exception is."""
    message = " ".join(str(error).split())
    outcome: Outcome = "error"
    if isinstance(error, KernelUnavailable):
        outcome = "kernel_unavailable"
    else:
        message = f"{type(error).__name__}: {message}"
        if is_out_of_memory(error):
            outcome = "oom"
    return RankFailure(outcome=outcome, message=message, failed_at=time.time())


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device or the host ran out of memory."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)
