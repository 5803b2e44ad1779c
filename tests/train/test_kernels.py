"""Which kernels run in a step, and which are refused."""

from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from scaling.train.failures import KernelUnavailable
from scaling.train.kernels.attention import attend
from scaling.train.kernels.availability import require_kernels
from scaling.train.model.decoder import Decoder
from tests.points import TINY, tiny_point
from tests.train.test_model import CPU, blueprint

FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
SOFTMAX = "aten::_softmax"


def operators_of_a_step(**layout: Any) -> dict[str, int]:
    """How often each operator ran in a forward and a backward."""
    model = Decoder(blueprint(tiny_point(**layout)))
    ids = torch.zeros(2, 16, dtype=torch.int64)
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as trace:
        model(ids, ids).backward()
    return {event.key: event.count for event in trace.key_averages()}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_flash2_runs_the_flash_kernel_in_every_layer_forward_and_backward(precision: str) -> None:
    ran = operators_of_a_step(attention="flash2", precision=precision)
    assert ran[FLASH] == TINY.num_layers
    assert ran[f"{FLASH}_backward"] == TINY.num_layers
    assert SOFTMAX not in ran


class Products(TorchDispatchMode):
    """The precisions that matrices are multiplied in."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: list[torch.dtype] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.ops.aten.bmm.default:
            self.dtypes.append(args[0].dtype)
        return function(*args, **(kwargs or {}))


def test_math_multiplies_in_the_precision_that_trains() -> None:
    """torch's own MATH would multiply in fp32, on a GPU at a fraction of the speed."""
    random = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, heads, 16, 8, generator=random, dtype=torch.bfloat16) for heads in (4, 2, 2)
    )
    with Products() as products:
        attended = attend(query, key, value, "math")
    assert products.dtypes == [torch.bfloat16] * 2
    exact = attend(query.double(), key.double(), value.double(), "math")
    torch.testing.assert_close(attended.double(), exact, atol=0.03, rtol=0)


def test_full_checkpointing_runs_every_attention_twice() -> None:
    ran = operators_of_a_step(attention="flash2", activation_checkpointing="full")
    assert ran[FLASH] == 2 * TINY.num_layers


def test_selective_checkpointing_repeats_the_attention_only() -> None:
    ran = operators_of_a_step(attention="flash2", activation_checkpointing="selective")
    without = operators_of_a_step(attention="flash2")
    assert ran[FLASH] == 2 * TINY.num_layers
    assert ran["aten::mm"] == without["aten::mm"]


@pytest.mark.parametrize(
    ("layout", "named"),
    [
        ({"attention": "flash1"}, "attention=flash1 is a label of published rows"),
        ({"attention": "flash3"}, "flash-attn-3 >= 3.0"),
        ({"attention": "flash4"}, "flash-attn-4 >= 4.0"),
        ({"attention": "cudnn"}, f"CUDNN_ATTENTION of torch {torch.__version__}"),
        ({"precision": "fp16"}, "needs a CUDA device"),
        ({"fused_norm": True}, "liger-kernel == 0.8.5"),
    ],
    ids=lambda value: " ".join(map(str, value.items())) if isinstance(value, dict) else "",
)
def test_a_missing_kernel_is_named_and_nothing_stands_in_for_it(
    layout: dict[str, Any], named: str
) -> None:
    with pytest.raises(KernelUnavailable, match=named.replace("+", r"\+")):
        require_kernels(TINY, tiny_point(**layout).layout, CPU)
