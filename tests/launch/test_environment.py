"""The environment of ranks, and whether their GPUs are there."""

import dataclasses
import re

import pytest

from scaling.cluster import node
from scaling.cluster.node import NvidiaGpu
from scaling.errors import InputError
from scaling.launch.point import missing_devices
from scaling.launch.start.environment import rank_environment
from tests.points import tiny_point

GPU_POINT = dataclasses.replace(tiny_point(dp=8), gpu="h100-80gb")
CARDS = [NvidiaGpu(uuid=f"GPU-{n}", bus_id=f"0000:0{n}:00.0") for n in range(8)]


@pytest.mark.parametrize(
    ("inherited", "gpu", "layout", "said"),
    [
        ({}, "h100-80gb", {}, {"PYTORCH_ALLOC_CONF": "expandable_segments:True",
                               "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        # what the user has set is respected
        *(({name: "max_split_size_mb:128"}, "h100-80gb", {},
           {"PYTORCH_ALLOC_CONF": None, "PYTORCH_CUDA_ALLOC_CONF": None,
            name: "max_split_size_mb:128"})
          for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")),
        ({}, "mi300x-192gb", {}, {"PYTORCH_ALLOC_CONF": None, "CUDA_DEVICE_ORDER": None}),
        # only tp without FSDP, which gathers on a stream of its own, queues in one connection
        ({}, "h100-80gb", {"tp": 2}, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
        ({}, "h100-80gb", {"dp": 2}, {"CUDA_DEVICE_MAX_CONNECTIONS": None}),
        ({}, "h100-80gb", {"tp": 2, "engine": "torch"}, {"CUDA_DEVICE_MAX_CONNECTIONS": None}),
        # what slows every step, and no row shows, is not passed on
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "h100-80gb", {}, {"CUDA_LAUNCH_BLOCKING": None}),
        ({"TORCH_DISTRIBUTED_DEBUG": "INFO", "NCCL_DEBUG": "INFO"}, "h100-80gb", {},
         {"TORCH_DISTRIBUTED_DEBUG": None, "NCCL_DEBUG": "INFO"}),
    ],
    ids=str,
)  # fmt: skip
def test_ranks_have_what_their_devices_need(inherited, gpu, layout, said):
    found = rank_environment(dataclasses.replace(tiny_point(**layout), gpu=gpu), inherited)
    assert {name: found.get(name) for name in said} == said


def cards(monkeypatch, count):
    found = (CARDS[:count], None if count else "Driver Not Loaded")
    monkeypatch.setattr(node, "nvidia_gpus", lambda: found)


ON_A_NODE = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n3"}


@pytest.mark.parametrize(
    ("count", "environment", "said"),
    [
        (0, ON_A_NODE, "n3 shows 0 of the 8 GPUs .*Driver Not Loaded"),
        (7, ON_A_NODE, "n3 shows 7 of the 8 GPUs"),
        (8, {**ON_A_NODE, "CUDA_VISIBLE_DEVICES": "NoDevFiles"}, "n3 shows 0 of the 8 GPUs"),
        (1, {**ON_A_NODE, "CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}, "n3 shows 2 of the 8 GPUs"),
        (8, ON_A_NODE, None),
        (8, {**ON_A_NODE, "CUDA_VISIBLE_DEVICES": "0"}, None),  # one for each rank
        (1, {**ON_A_NODE, "CUDA_VISIBLE_DEVICES": ",".join(["MIG-1"] * 8)}, None),
        (0, {"SLURM_JOB_ID": "7"}, None),  # from a login node
    ],
    ids=str,
)
def test_a_node_without_the_points_gpus_is_named(monkeypatch, count, environment, said):
    cards(monkeypatch, count)
    missing = missing_devices(GPU_POINT, environment)
    assert missing is None if said is None else re.match(said, missing)


@pytest.mark.parametrize("threads", ["two", "0", "-1", "1.5"])
@pytest.mark.parametrize("point", [tiny_point(), GPU_POINT], ids=["cpu", "gpu"])
def test_a_number_of_threads_that_libraries_would_ignore_is_refused(threads, point):
    with pytest.raises(InputError, match=f"^SCALING_THREADS={threads}: must be a whole number"):
        rank_environment(point, {"SCALING_THREADS": threads})
