"""A rank's report of the error that ended it, and which errors mean that memory ran out."""

import errno
import math

import pytest
import torch

from scaling.train.failures import (
    Diverged,
    KernelUnavailable,
    failure_of,
    is_out_of_memory,
    require_finite,
)
from tests.points import tiny_point


def test_an_allocation_no_host_can_hold_is_oom() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert failure_of(caught.value).outcome == "oom"


def wrapped(cause: Exception) -> RuntimeError:
    """The error that a stage of torch's pipelines raises from an error of its forward."""
    try:
        raise RuntimeError("[Stage 1] failed to run forward: args: (...)") from cause
    except RuntimeError as error:
        return error


def test_the_outcome_of_a_stage_is_that_of_the_error_in_its_forward() -> None:
    full = torch.OutOfMemoryError("CUDA out of memory")
    full.add_note("40.0 GiB were taken before.")
    failure = failure_of(wrapped(wrapped(full)))
    assert failure.outcome == "oom"
    assert failure.message.endswith("CUDA out of memory 40.0 GiB were taken before.")
    failure = failure_of(wrapped(KernelUnavailable("flash3 needs a package")))
    assert (failure.outcome, failure.message) == ("kernel_unavailable", "flash3 needs a package")
    assert failure_of(wrapped(ValueError("shapes differ"))).message == "ValueError: shapes differ"


def test_other_causes_of_an_error_leave_it_as_it_is() -> None:
    with pytest.raises(KernelUnavailable) as caught:
        raise KernelUnavailable("flash3 needs a package") from MemoryError()
    assert failure_of(caught.value).outcome == "kernel_unavailable"


def test_a_node_without_a_c_compiler_lacks_what_triton_needs() -> None:
    """Torch's compiler wraps Triton's error, Liger's kernels raise it as it is."""
    triton = "Failed to find C compiler. Please specify via CC environment variable"
    for text in (triton, f"backend='inductor' raised:\nRuntimeError: {triton}\n\nSet TORCH_LOGS"):
        failure = failure_of(RuntimeError(text))
        assert failure.outcome == "kernel_unavailable"
        assert failure.message.startswith("compile and the fused_* kernels need a C compiler on")


def test_anything_else_is_an_error_of_its_type_in_one_line() -> None:
    failure = failure_of(ValueError("shapes\n  differ"))
    assert (failure.outcome, failure.message) == ("error", "ValueError: shapes differ")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("step", [0, 1, 4])
def test_a_loss_that_is_no_number_names_step_and_precision(value: float, step: int) -> None:
    point = tiny_point(warmup_steps=2, measured_steps=3, precision="bf16")
    losses = [5.5, 5.25, 5.0, 4.75][:step]
    with pytest.raises(Diverged) as caught:
        require_finite(point, [*losses, value], 1.0)
    failure = failure_of(caught.value)
    assert failure.outcome == "error"
    warming = ", a warm-up step," if step < 2 else ""
    began = f"at step {step} of 5{warming} the loss is {value} in precision=bf16"
    assert failure.message.startswith(began)
    told = failure.message.partition("; losses before it: ")[2]
    assert [float(loss) for loss in told.split(", ") if loss] == losses


def test_a_gradient_that_is_no_number_is_no_training_either() -> None:
    with pytest.raises(Diverged, match="the gradient norm is inf in precision=fp32"):
        require_finite(tiny_point(), [5.0], math.inf)


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
