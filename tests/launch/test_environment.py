"""The environment of ranks, and whether their GPUs are there."""

import dataclasses
from typing import Any

import pytest

from scaling.cluster import node
from scaling.cluster.node import NvidiaGpu
from scaling.errors import InputError
from scaling.launch.point import missing_devices
from scaling.launch.start.environment import rank_environment
from tests.points import tiny_point

GPU_POINT = dataclasses.replace(tiny_point(dp=8), gpu="h100-80gb")
CARDS = [NvidiaGpu(uuid=f"GPU-{n}", bus_id=f"0000:0{n}:00.0") for n in range(8)]


def test_gpu_ranks_have_memory_that_grows():
    said = rank_environment(GPU_POINT, {"OMP_NUM_THREADS": "96"})
    assert said["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert said["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@pytest.mark.parametrize(
    ("layout", "told"),
    [
        ({"tp": 2}, "1"),
        ({"dp": 2}, None),
        ({"tp": 2, "engine": "torch"}, None),  # FSDP2 gathers on a stream of its own
    ],
)
def test_only_tp_without_fsdp_is_told_to_queue_in_one_connection(layout, told):
    point = dataclasses.replace(tiny_point(**layout), gpu="h100-80gb")
    assert rank_environment(point, {}).get("CUDA_DEVICE_MAX_CONNECTIONS") == told


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_what_the_user_has_set_is_respected(name):
    users = {name: "max_split_size_mb:128"}
    said = rank_environment(GPU_POINT, users)
    assert {key: said[key] for key in users} == users
    assert sum("ALLOC_CONF" in key for key in said) == 1


@pytest.mark.parametrize("name", ["CUDA_LAUNCH_BLOCKING", "TORCH_DISTRIBUTED_DEBUG"])
def test_what_slows_every_step_and_no_row_shows_is_not_passed_on(name):
    assert name not in rank_environment(GPU_POINT, {name: "1", "NCCL_DEBUG": "INFO"})


def test_another_vendors_gpus_are_not_told_what_only_nvidias_know():
    said = rank_environment(dataclasses.replace(GPU_POINT, gpu="mi300x-192gb"), {})
    assert not {"PYTORCH_ALLOC_CONF", "CUDA_DEVICE_ORDER"} & said.keys()


def cards(monkeypatch, count):
    found: Any = (CARDS[:count], None if count else "Driver Not Loaded")
    monkeypatch.setattr(node, "nvidia_gpus", lambda: found)


ON_A_NODE = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n3"}


@pytest.mark.parametrize(
    ("count", "environment"),
    [
        (0, ON_A_NODE),
        (7, ON_A_NODE),
        (8, {**ON_A_NODE, "CUDA_VISIBLE_DEVICES": "NoDevFiles"}),
        (1, {**ON_A_NODE, "CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}),
    ],
    ids=["no driver", "one has fallen off the bus", "none is given", "too few slices"],
)
def test_a_node_without_the_points_gpus_is_named(monkeypatch, count, environment):
    cards(monkeypatch, count)
    missing = missing_devices(GPU_POINT, environment)
    assert missing.startswith("n3 shows ")
    assert ("Driver Not Loaded" in missing) == (count == 0)


@pytest.mark.parametrize(
    ("count", "environment"),
    [
        (8, ON_A_NODE),
        (8, {**ON_A_NODE, "CUDA_VISIBLE_DEVICES": "0"}),
        (1, {**ON_A_NODE, "CUDA_VISIBLE_DEVICES": ",".join(f"MIG-{n}" for n in range(8))}),
        (0, {"SLURM_JOB_ID": "7"}),
    ],
    ids=["all", "one for each rank", "slices", "from a login node"],
)
def test_no_gpu_is_missing_if_ranks_have_theirs_or_nothing_is_known(
    monkeypatch, count, environment
):
    cards(monkeypatch, count)
    assert missing_devices(GPU_POINT, environment) is None


@pytest.mark.parametrize("threads", ["two", "0", "-1", "1.5"])
@pytest.mark.parametrize("point", [tiny_point(), GPU_POINT], ids=["cpu", "gpu"])
def test_a_number_of_threads_that_libraries_would_ignore_is_refused(threads, point):
    with pytest.raises(InputError, match=f"^SCALING_THREADS={threads}: must be a whole number"):
        rank_environment(point, {"SCALING_THREADS": threads})
