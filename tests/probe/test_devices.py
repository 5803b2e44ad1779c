"""Probes of a device run what trains, or say what is missing."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from scaling.probe.devices import prepare_task, read_under_load
from scaling.probe.plan import Task
from scaling.train.failures import KernelUnavailable

CPU = torch.device("cpu")


def attention(kernel, precision="bf16"):
    return Task(
        kind="attention", attention=kernel, precision=precision, batch_size=1, num_heads=4,
        num_kv_heads=2, head_dim=8, seq_length=16,
    )  # fmt: skip


class Called(TorchDispatchMode):
    """The kernels that ran, and the precisions that matrices were multiplied in."""

    def __init__(self):
        super().__init__()
        self.names, self.dtypes = set(), set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function.__name__)
        if function is torch.ops.aten.bmm.default:
            self.dtypes.add(args[0].dtype)
        return function(*args, **(kwargs or {}))


def test_math_is_the_engines_which_multiplies_in_the_precision_that_trains():
    work = prepare_task(attention("math"), CPU)
    with Called() as called:
        work()
    assert called.dtypes == {torch.bfloat16}
    assert "_softmax.default" in called.names


def test_flash2_is_the_kernel_that_trains_forward_and_backward():
    work = prepare_task(attention("flash2"), CPU)
    with Called() as called:
        work()
    flash = "_scaled_dot_product_flash_attention_for_cpu"
    assert {f"{flash}.default", f"{flash}_backward.default"} <= called.names


@pytest.mark.parametrize(
    ("task", "named"),
    [
        (attention("cudnn"), r"attention=cudnn \(CUDNN_ATTENTION of torch .*\) cannot run here"),
        (attention("flash3"), "flash-attn-3 >= 3.0"),
        (attention("flash1"), "attention=flash1 is a label"),
    ],
)
def test_what_is_not_there_is_named_as_in_training(task, named):
    with pytest.raises(KernelUnavailable, match=named):
        prepare_task(task, CPU)


def test_clock_and_power_are_read_while_runs_are_queued():
    told = []

    class Metered:
        def sample(self):
            told.append("sample")
            return {"clock_hz": 1.75e9, "power_w": 700.0, "throttled_share": 1.0}

    record = read_under_load(lambda: told.append("run"), Metered())
    assert record == {"clock_hz": 1.75e9, "power_w": 700.0}
    assert told[-2:] == ["run", "sample"]
    assert set(told[:-1]) == {"run"}
