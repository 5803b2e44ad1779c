"""The table of kernels: an entry and its call are a kernel for training, probes and the check."""

import importlib.metadata
import types
from collections.abc import Callable

import pytest
import torch

from scaling.check.kernel_checks import SMALL, fused_kernels, kernel_lines
from scaling.layout.axes import AXES
from scaling.layout.kernels import ATTENTION, FUSED, Kernel, Package
from scaling.predict.read.features import kernel_of
from scaling.predict.read.stacks import OWN_STACKS
from scaling.probe.devices import prepare_task
from scaling.probe.plan import Task
from scaling.train.failures import KernelUnavailable
from scaling.train.kernels import availability
from scaling.train.kernels.attention import CALLS, attend
from scaling.train.kernels.availability import require_kernels
from tests.points import TINY, tiny_point
from tests.train.test_model import CPU

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


def test_training_probe_and_check_name_a_missing_package(
    register: Register,
) -> None:
    register(PACKAGE)
    missing = NEEDS + "made-up-attn is not installed"
    with pytest.raises(KernelUnavailable, match=missing):
        require_kernels(TINY, tiny_point(attention="made_up").layout, CPU)
    with pytest.raises(KernelUnavailable, match=missing):
        prepare_task(TASK, CPU)
    lines = {line.name: line for line in kernel_lines(SMALL, "fp32", CPU)}
    assert lines["attention made_up fp32"].state == "not here"
    assert "made-up-attn is not installed" in lines["attention made_up fp32"].said


@pytest.mark.parametrize(
    ("version", "major", "said"),
    [
        ("2.0", 9, "made-up-attn is 2.0 here"),
        ("1.4", 8, "NVIDIA A has compute capability 8.0, and it is built for 9.x"),
    ],
)
def test_a_kernel_that_this_gpu_or_version_has_not_says_so(
    monkeypatch: pytest.MonkeyPatch, version: str, major: int, said: str
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    monkeypatch.setattr(importlib, "import_module", types.ModuleType)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (major, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A")
    kernel = Kernel(setting="attention=made_up", package=PACKAGE)
    with pytest.raises(KernelUnavailable, match=NEEDS + said):
        availability.require_package(kernel, torch.device("cuda"))


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
