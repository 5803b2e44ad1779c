"""A rank's report of the error that ended it."""

import math

import pytest
import torch

from scaling.train.failures import Diverged, KernelUnavailable, failure_of, require_finite
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
