"""Names as nvidia-smi and rocm-smi print them."""

from types import SimpleNamespace

import pytest
import torch

from scaling.cluster.hardware import GPUS
from scaling.train.device import gpu_mismatch, software_stack, take_device
from tests.points import tiny_point

GIB = 2**30
SAME = [
    ("v100-32gb", "Tesla V100-SXM2-32GB", 31.7),
    ("a100-40gb", "NVIDIA A100-SXM4-40GB", 39.4),
    ("a100-80gb", "NVIDIA A100-SXM4-80GB", 79.2),
    ("a100-pcie-40gb", "NVIDIA A100-PCIE-40GB", 39.4),
    ("a100-pcie-80gb", "NVIDIA A100 80GB PCIe", 79.1),
    ("a800-80gb", "NVIDIA A800-SXM4-80GB", 79.2),
    ("a40-48gb", "NVIDIA A40", 44.4),
    ("l40s-48gb", "NVIDIA L40S", 44.4),
    ("h100-80gb", "NVIDIA H100 80GB HBM3", 79.2),
    ("h100-pcie-80gb", "NVIDIA H100 PCIe", 79.1),
    ("h100-nvl-94gb", "NVIDIA H100 NVL", 93.1),
    ("h800-80gb", "NVIDIA H800", 79.1),
    ("h20-96gb", "NVIDIA H20", 95.6),
    ("h200-141gb", "NVIDIA H200", 139.8),
    ("h200-nvl-141gb", "NVIDIA H200 NVL", 140.4),
    ("gh200-96gb", "NVIDIA GH200 480GB", 95.6),
    ("b200-180gb", "NVIDIA B200", 178.4),
    ("gb200-186gb", "NVIDIA GB200", 184.3),
    ("b300-288gb", "NVIDIA B300 SXM6 AC", 268.6),
    ("gb300-288gb", "NVIDIA GB300", 277.5),
    ("mi250x-gcd", "AMD Instinct MI250X/MI250", 64.0),
    ("mi300a-128gb", "AMD Instinct MI300A", 128.0),
    ("mi300x-192gb", "AMD Instinct MI300X", 191.7),
    ("mi325x-256gb", "AMD Instinct MI325X", 256.0),
    ("mi350x-288gb", "AMD Instinct MI350X", 288.0),
    ("mi355x-288gb", "AMD Instinct MI355X", 288.0),
]


@pytest.mark.parametrize(("said", "name", "gib"), SAME)
def test_a_device_is_known_by_its_chip_and_its_memory(said: str, name: str, gib: float) -> None:
    fitting = [gpu.name for gpu in GPUS.values() if gpu.memory_bytes is not None]
    fitting = [gpu for gpu in fitting if gpu_mismatch(GPUS[gpu], name, int(gib * GIB)) is None]
    assert fitting == [said]


@pytest.mark.parametrize(
    ("said", "name", "gib", "right"),
    [
        ("a100-80gb", "NVIDIA A100-SXM4-40GB", 39.4, "a100-40gb"),  # half the memory
        ("h100-80gb", "NVIDIA H100 PCIe", 79.2, "h100-pcie-80gb"),  # three quarters of the peak
        ("h100-80gb", "NVIDIA H100 NVL", 93.0, "h100-nvl-94gb"),
        ("b200-180gb", "NVIDIA GB200", 184.3, "gb200-186gb"),
        # 98 of 108 multiprocessors
        ("a100-40gb", "NVIDIA A100-SXM4-40GB MIG 7g.40gb", 39.3, None),
        ("v100-32gb", "Tesla V100-SXM2-16GB", 15.8, None),
    ],
)
def test_another_device_than_the_study_says_is_named(
    said: str, name: str, gib: float, right: str | None
) -> None:
    named = f"write gpu: {right} in" if right else "the catalogue has no such GPU to name in"
    assert gpu_mismatch(GPUS[said], name, int(gib * GIB)) == (
        f"the study says gpu {said!r} and this rank has {name} with {gib:.0f} GiB: {named} its "
        "cluster's entry of config/clusters.yaml"
    )


def test_a_study_of_cpus_takes_none() -> None:
    assert take_device("cpu", 0).type == "cpu"


def test_a_rank_with_another_gpu_than_the_study_says_takes_none(monkeypatch) -> None:
    properties = SimpleNamespace(name="NVIDIA A100-SXM4-80GB", total_memory=79 * GIB)
    for name, answer in {
        "is_available": True,
        "device_count": 1,
        "set_device": None,
        "get_device_properties": properties,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    torch.set_float32_matmul_precision("high")  # as TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 does
    assert take_device("a100-80gb", 0) == torch.device("cuda", 0)
    assert torch.get_float32_matmul_precision() == "highest"
    with pytest.raises(RuntimeError, match="'h100-80gb' and this rank has NVIDIA A100"):
        take_device("h100-80gb", 0)
    with pytest.raises(RuntimeError, match="for local rank 1 there is none"):
        take_device("a100-80gb", 1)


def test_in_a_job_a_host_has_the_name_by_which_slurm_can_exclude_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "node1.cluster.local")
    monkeypatch.setenv("SLURMD_NODENAME", "node1")
    layout = tiny_point().layout

    assert software_stack(torch.device("cpu"), layout).host == "node1"
