"""A rank's report of the error that ended it, and which errors mean that memory ran out."""

import errno
import math

import pytest
import torch

from scaling.train.failures import Diverged, KernelUnavailable, failure_of, require_finite
from tests.points import tiny_point


def wrapped(cause: Exception) -> RuntimeError:
    """The error that a stage of torch's pipelines raises from an error of its forward."""
    try:
        raise RuntimeError("[Stage 1] failed to run forward: args: (...)") from cause
    except RuntimeError as error:
        return error


def nccl(last_words: str) -> torch.distributed.DistBackendError:
    """As ProcessGroupNCCL words it: where, NCCL's code, and NCCL's own last words."""
    return torch.distributed.DistBackendError(
        "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled cuda error (run "
        "with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\n"
        f"ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n{last_words}"
    )


FULL = torch.OutOfMemoryError("CUDA out of memory")
FULL.add_note("40.0 GiB were taken before.")
MISSING = KernelUnavailable("flash3 needs a package")
MISSING.__cause__ = MemoryError()
COMPILER = "Failed to find C compiler. Please specify via CC environment variable"
NO_COMPILER = "compile and the fused_* kernels need a C compiler on every GPU node (gcc, or CC)"


@pytest.mark.parametrize(
    ("error", "outcome", "message"),
    [
        (wrapped(wrapped(FULL)), "oom",
         "OutOfMemoryError: CUDA out of memory 40.0 GiB were taken before."),
        (wrapped(MISSING), "kernel_unavailable", "flash3 needs a package"),
        (wrapped(ValueError("shapes\n differ")), "error", "ValueError: shapes differ"),
        # torch's compiler wraps Triton's error, Liger's kernels raise it as it is
        (RuntimeError(COMPILER), "kernel_unavailable", NO_COMPILER),
        (RuntimeError(f"backend='inductor' raised:\nRuntimeError: {COMPILER}\n\nSet TORCH_LOGS"),
         "kernel_unavailable", NO_COMPILER),
        (MemoryError(), "oom", "MemoryError: no memory was left, or no reason given"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_an_error_has_its_outcome_and_one_line(
    error: Exception, outcome: str, message: str
) -> None:
    failure = failure_of(error)
    assert (failure.outcome, failure.message) == (outcome, message)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "oom"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "oom"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), "oom"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), "oom"),
        (RuntimeError("CUDA driver error: out of memory"), "oom"),
        (RuntimeError("Triton Error [CUDA]: out of memory"), "oom"),
        (nccl("Cuda failure 2 'out of memory'"), "oom"),
        (nccl("Failed to CUDA calloc async 10485760 bytes"), "oom"),
        # what a smaller model would meet as well
        (nccl("Cuda failure 700 'an illegal memory access was encountered'"), "error"),
        (nccl("Call to ibv_reg_mr failed with error Cannot allocate memory"), "error"),  # ulimit -l
        (OSError(errno.ENOSPC, "No space left on device"), "error"),
        (RuntimeError("out of resource: shared memory, Required: 245760"), "error"),
        (ValueError("the study ran out of memory"), "error"),
    ],
    ids=lambda value: str(value).splitlines()[-1],
)
def test_errors_of_full_memory_are_understood_and_no_others(error: Exception, outcome: str) -> None:
    assert failure_of(error).outcome == outcome


def test_an_allocation_no_host_can_hold_is_oom() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert failure_of(caught.value).outcome == "oom"


@pytest.mark.parametrize("library", ["CUBLAS", "CUDNN"])
def test_a_handle_that_a_full_card_refuses_is_out_of_memory(
    monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    error = RuntimeError(f"error: {library}_STATUS_NOT_INITIALIZED when calling `cublasCreate`")
    for free, outcome in ((100 * 2**20, "oom"), (10 * 2**30, "error")):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (free, 80 * 2**30))
        assert failure_of(error).outcome == outcome


def test_a_compilers_message_keeps_its_first_and_last_words() -> None:
    warnings = "warning: overflow in conversion " * 3000
    said = failure_of(RuntimeError(f"g++ failed: {warnings} undefined symbol")).message
    assert said.startswith("RuntimeError: g++ failed: warning")
    assert said.endswith("undefined symbol")
    assert len(said) < 5000


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
