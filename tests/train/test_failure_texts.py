"""Which errors of libraries mean that memory ran out."""

import errno

import pytest
import torch

from scaling.train.failures import failure_of, is_out_of_memory

# as ProcessGroupNCCL words it: where, NCCL's code, and the last thing that NCCL itself said
NCCL = (
    "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled cuda error (run "
    "with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\n"
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n{}"
)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        RuntimeError("CUDA driver error: out of memory"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        torch.distributed.DistBackendError(NCCL.format("Cuda failure 2 'out of memory'")),
        torch.distributed.DistBackendError(
            NCCL.format("Failed to CUDA calloc async 10485760 bytes")
        ),
    ],
    ids=lambda error: str(error).splitlines()[-1:],
)
def test_whoever_runs_out_of_memory_is_understood(error: BaseException) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
    ],
)
def test_a_handle_that_a_full_card_refuses_is_out_of_memory(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    for free, expected in ((100 * 2**20, True), (10 * 2**30, False)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (free, 80 * 2**30))
        assert is_out_of_memory(RuntimeError(text)) is expected


@pytest.mark.parametrize(
    "error",
    [
        torch.distributed.DistBackendError(
            NCCL.format("Cuda failure 700 'an illegal memory access was encountered'")
        ),
        RuntimeError(
            NCCL.format("Call to ibv_reg_mr failed with error Cannot allocate memory")
        ),  # ulimit -l
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("out of resource: shared memory, Required: 245760"),
        ValueError("the study ran out of memory"),
    ],
    ids=lambda error: str(error).splitlines()[-1:],
)
def test_what_a_smaller_model_would_meet_as_well_is_not_out_of_memory(error: BaseException) -> None:
    assert not is_out_of_memory(error)


def test_a_compilers_message_keeps_its_first_and_last_words() -> None:
    warnings = "warning: overflow in conversion " * 3000
    said = failure_of(RuntimeError(f"g++ failed: {warnings} undefined symbol")).message
    assert said.startswith("RuntimeError: g++ failed: warning")
    assert said.endswith("undefined symbol")
    assert len(said) < 5000
