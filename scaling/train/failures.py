"""What an exception of torch, NCCL or a kernel means: the one place that knows their texts.

Training and probes both end in outcomes, and the same failure must have the same name in both.
"""

import errno

import torch


class KernelUnavailable(Exception):
    """A kernel or a precision was asked for by name and is not there; nothing stands in for it."""


# What allocators other than torch's own on a GPU say, which raise a plain RuntimeError.
_OUT_OF_MEMORY = (
    "out of memory",  # the CUDA runtime, its driver, Triton, and NCCL: "Cuda failure 2 '...'"
    "can't allocate memory",  # torch's CPU allocator
    "std::bad_alloc",
    "STATUS_ALLOC_FAILED",  # cuBLAS and cuDNN
    "Failed to CUDA calloc",  # NCCL, where its last word is all that torch repeats
    "Failed to CUDA malloc",
    "Failed to CUDA host alloc",
)
# What torch's attention says where the kernel that was named cannot run, likewise.
_NO_KERNEL = ("No available kernel", "No viable backend")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device or the host ran out of memory.

    Not meant: limits that look like it. Memory that may not be pinned (`ulimit -l`) and a full
    /dev/shm are settings of the machine, which a smaller model would meet as well.
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


def is_no_kernel(error: RuntimeError) -> bool:
    """Whether torch has no attention kernel of the kind it was told to use."""
    return any(text in str(error) for text in _NO_KERNEL)
