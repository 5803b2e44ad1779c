"""Kernels that run in a step, and those that cannot.

An entry of the table and its call are a kernel for training, probes and the check.
"""

import importlib.metadata
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from scaling.check.kernel_checks import SMALL, fused_kernels, kernel_lines
from scaling.layout.axes import AXES
from scaling.layout.kernels import ATTENTION, FUSED, Kernel, Package
from scaling.predict.read.features import kernel_of
from scaling.predict.read.stacks import OWN_STACKS
from scaling.probe.devices import prepare_task
from scaling.probe.plan import Task
from scaling.train.failures import KernelUnavailable
from scaling.train.kernels.attention import CALLS, attend
from scaling.train.kernels.availability import require_kernels, require_package
from scaling.train.model.decoder import Decoder
from tests.points import TINY, tiny_point
from tests.train.test_model import CPU, blueprint

PACKAGE = Package(
    name="made-up-attn", module="made_up_attn", requirement="made-up-attn >= 1 (Hopper)",
    version="1.", capabilities=(9,),
)  # fmt: skip
NEEDS = "attention=made_up needs made-up-attn >= 1 \\(Hopper\\); "
TASK = Task(
    kind="attention", attention="made_up", precision="fp32", batch_size=1, num_heads=4,
    num_kv_heads=2, head_dim=8, seq_length=16,
)  # fmt: skip
Register = Callable[..., list[int]]


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Register:
    """Add a kernel to the table and its call to the calls; how often it ran."""

    def registered(package: Package | None) -> list[int]:
        calls = []

        def call(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            return attend(query, key, value, "math")

        kernel = Kernel(setting="attention=made_up", package=package, cost="flash3")
        monkeypatch.setitem(ATTENTION, "made_up", kernel)
        monkeypatch.setitem(CALLS, "made_up", call)
        return calls

    return registered


def test_a_kernel_of_the_table_is_run_by_training_probe_and_check(register: Register) -> None:
    calls = register(None)
    require_kernels(TINY, tiny_point(attention="made_up").layout, CPU)
    assert len(calls) == 1
    prepare_task(TASK, CPU)
    assert len(calls) == 2
    lines = {line.name: line.state for line in kernel_lines(SMALL, "fp32", CPU)}
    assert lines["attention made_up fp32"] == "pass"


@pytest.mark.parametrize(
    ("installed", "device", "major", "said"),
    [
        (None, "cpu", 0, "made-up-attn is not installed"),
        ("1.4", "cpu", 0, "this rank runs on a CPU"),
        ("2.0", "cuda", 9, "made-up-attn is 2.0 here"),
        ("1.4", "cuda", 8, "NVIDIA A has compute capability 8.0, and it is built for 9.x"),
        ("1.4", "cuda", 0, "made-up-attn 1.4 cannot be imported: "),
    ],
)
def test_a_kernel_whose_package_cannot_run_says_why(
    monkeypatch: pytest.MonkeyPatch, installed: str | None, device: str, major: int, said: str
) -> None:
    versions = {"made-up-attn": installed} if installed else {}
    real = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: versions.get(name) or real(name)
    )
    module = types.ModuleType("made_up_attn") if major else None
    monkeypatch.setitem(sys.modules, "made_up_attn", module)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (major, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A")
    kernel = Kernel(setting="attention=made_up", package=PACKAGE)
    with pytest.raises(KernelUnavailable, match=NEEDS + said):
        require_package(kernel, torch.device(device))


def test_training_probe_and_check_name_a_missing_package(register: Register) -> None:
    register(PACKAGE)
    missing = NEEDS + "made-up-attn is not installed"
    with pytest.raises(KernelUnavailable, match=missing):
        require_kernels(TINY, tiny_point(attention="made_up").layout, CPU)
    with pytest.raises(KernelUnavailable, match=missing):
        prepare_task(TASK, CPU)
    line = next(line for line in kernel_lines(SMALL, "fp32", CPU) if "made_up" in line.name)
    assert (line.state, "made-up-attn is not installed" in line.said) == ("not here", True)


def test_the_prediction_takes_a_kernel_for_what_its_entry_says(register: Register) -> None:
    register(None)
    names = ["made_up", "math", "cudnn", "flash2"]
    costs = [kernel_of(name, OWN_STACKS["scaling"]) for name in names]
    assert costs == ["flash3", "math", "flash3", "flash2"]


def test_axes_checks_and_calls_are_those_of_the_table() -> None:
    assert AXES["attention"].values == tuple(ATTENTION)
    assert set(FUSED) <= set(AXES)
    assert {kernel.axis for kernel in fused_kernels(SMALL, CPU)} == set(FUSED)
    assert set(CALLS) == {name for name, kernel in ATTENTION.items() if kernel.runs}
    assert all(kernel.cost is not None for kernel in ATTENTION.values())


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


def test_checkpointing_runs_attention_twice_and_products_only_if_full() -> None:
    ran = {
        name: operators_of_a_step(attention="flash2", activation_checkpointing=name)
        for name in ("none", "selective", "full")
    }
    assert [each[FLASH] for each in ran.values()] == [4, 8, 8]
    assert ran["none"]["aten::mm"] == ran["selective"]["aten::mm"] < ran["full"]["aten::mm"]


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
