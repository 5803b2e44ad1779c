import pytest
import torch

from scaling.train.failures import KernelUnavailable, failure_of


def test_an_allocation_no_host_can_hold_is_oom() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert failure_of(caught.value).outcome == "oom"


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        MemoryError(),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_running_out_of_memory_is_oom(error: Exception) -> None:
    assert failure_of(error).outcome == "oom"


def test_a_missing_kernel_speaks_for_itself() -> None:
    failure = failure_of(KernelUnavailable("flash3 needs a package"))
    assert (failure.outcome, failure.message) == ("kernel_unavailable", "flash3 needs a package")


def test_anything_else_is_an_error_of_its_type_in_one_line() -> None:
    failure = failure_of(ValueError("shapes\n  differ"))
    assert (failure.outcome, failure.message) == ("error", "ValueError: shapes differ")
