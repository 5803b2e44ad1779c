"""Recognize failures by the texts of torch's, NCCL's and the kernels' exceptions.

Training and probes share this, so that the same failure has the same outcome in both.
"""

import errno
import math

import torch

from scaling.cluster.hardware import GIB


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
