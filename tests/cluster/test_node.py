"""A rank at home on its node, told by a made-up sysfs and made-up GPUs."""

import os
import resource
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from scaling.cluster import node
from scaling.cluster.node import (
    NvidiaGpu,
    bind_rank,
    compile_cache,
    interface_to,
    near_cpus,
    raise_open_files_limit,
    rank_threads,
    visible_devices,
)

EIGHT = [NvidiaGpu(uuid=f"GPU-{n}000-aa", bus_id=f"0000:0{n}:00.0") for n in range(8)]


def device(root: Path, bus_id: str, numa_node: str, cpus: str) -> None:
    folder = root / "sys/bus/pci/devices" / bus_id
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text(numa_node)
    (folder / "local_cpulist").write_text(cpus)


def test_the_cpus_near_a_gpu_are_those_of_its_numa_node(tmp_path: Path) -> None:
    device(tmp_path, "0000:07:00.0", "1\n", "4-6,12\n")
    assert near_cpus("0000:07:00.0", tmp_path) == {4, 5, 6, 12}


def test_where_the_kernel_knows_no_numa_node_nothing_is_near(tmp_path: Path) -> None:
    device(tmp_path, "0000:07:00.0", "-1\n", "0-15\n")
    device(tmp_path, "0000:08:00.0", "\n", "\n")
    assert near_cpus("0000:07:00.0", tmp_path) == frozenset()
    assert near_cpus("0000:08:00.0", tmp_path) == frozenset()
    assert near_cpus("0000:ff:00.0", tmp_path) == frozenset()


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ({}, None),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, []),
        ({"CUDA_VISIBLE_DEVICES": "0, 3,-1,4"}, ["0", "3"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-3000-aa,MIG-1"}, ["GPU-3000-aa", "MIG-1"]),
    ],
)
def test_what_is_visible_is_what_cuda_makes_of_the_list(
    said: dict[str, str], shown: list[str] | None
) -> None:
    assert visible_devices(said) == shown


@pytest.mark.parametrize(
    ("own", "node_cpus", "ranks_here", "count"),
    [(64, 64, 8, 8), (8, 64, 8, 8), (32, 64, 1, 32), (1, 2, 4, 1)],
    ids=["unbound", "bound by Slurm", "bound to a NUMA node", "fewer cores than ranks"],
)
def test_a_rank_on_a_gpu_gets_its_share_of_the_nodes_cores(
    own: int, node_cpus: int, ranks_here: int, count: int
) -> None:
    inherited = {"OMP_NUM_THREADS": "128"}  # as Snakemake tells its jobs
    assert rank_threads(inherited, own, node_cpus, ranks_here) == count
    assert rank_threads({"SCALING_THREADS": "3"}, own, node_cpus, ranks_here) == 3


class Cores:
    """This process's affinity, and what it was set to."""

    def __init__(self, cores: range) -> None:
        self.now = set(cores)

    def get(self, _: int) -> set[int]:
        return self.now

    def set(self, _: int, cores: frozenset[int]) -> None:
        self.now = set(cores)


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Cores:
    """A node of 64 cores and eight GPUs, four near each half of the cores."""
    found = Cores(range(64))
    monkeypatch.setattr(os, "sched_getaffinity", found.get)
    monkeypatch.setattr(os, "sched_setaffinity", found.set)
    monkeypatch.setattr(node, "nvidia_gpus", lambda: (EIGHT, None))
    halves = {gpu.bus_id: frozenset(range(32 * (n // 4), 32 * (n // 4) + 32))
              for n, gpu in enumerate(EIGHT)}  # fmt: skip
    monkeypatch.setattr(node, "near_cpus", halves.__getitem__)
    return found


def seated(**more: str) -> dict[str, str]:
    plain = {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "localhost"}
    return {**plain, "RANK": "5", "LOCAL_RANK": "5", **more}


def test_a_rank_is_bound_to_the_cores_near_its_gpu(cores: Cores) -> None:
    environment = seated(CUDA_VISIBLE_DEVICES=",".join(gpu.uuid for gpu in reversed(EIGHT)))
    bind_rank(environment, on_gpu=True)
    assert environment["CUDA_VISIBLE_DEVICES"] == "7,6,5,4,3,2,1,0"
    assert cores.now == set(range(32))  # the sixth of that list is GPU 2
    assert (environment["OMP_NUM_THREADS"], environment["LOCAL_RANK"]) == ("8", "5")


def test_the_only_gpu_that_a_rank_sees_is_its_first(cores: Cores) -> None:
    environment = seated(CUDA_VISIBLE_DEVICES="5")
    bind_rank(environment, on_gpu=True)
    assert environment["LOCAL_RANK"] == "0"
    assert cores.now == set(range(32, 64))


def test_a_rank_that_slurm_has_bound_elsewhere_stays_there(cores: Cores) -> None:
    cores.now = set(range(8))
    environment = seated(SLURM_CPUS_ON_NODE="64")
    bind_rank(environment, on_gpu=True)
    assert cores.now == set(range(8))
    assert environment["OMP_NUM_THREADS"] == "8"


def test_compiled_kernels_lie_in_a_folder_of_this_user_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / f"scaling-{os.getuid()}"
    assert compile_cache(tmp_path) == folder
    assert folder.stat().st_mode & 0o077 == 0
    home = Path.home() / ".cache" / "scaling"
    folder.chmod(0o777)
    assert compile_cache(tmp_path) == home
    folder.rmdir()
    folder.symlink_to(tmp_path)
    assert compile_cache(tmp_path) == home
    folder.unlink()
    folder.mkdir(mode=0o700)
    owner = os.getuid()
    monkeypatch.setattr("os.getuid", lambda: owner + 1)
    folder.rename(tmp_path / f"scaling-{owner + 1}")  # as if another user had made it
    assert compile_cache(tmp_path) == home


def test_gloo_is_told_the_interface_that_leads_to_the_master(
    cores: Cores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "interface_to", lambda master: f"to-{master}")
    for said, told in ({}, "to-n0"), ({"GLOO_SOCKET_IFNAME": "ib0"}, "ib0"):
        environment = seated(WORLD_SIZE="16", MASTER_ADDR="n0", **said)
        bind_rank(environment, on_gpu=False)
        assert environment["GLOO_SOCKET_IFNAME"] == told


def test_the_interface_is_that_of_the_routes_own_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Route:
        own = ""

        def __init__(self, *_: Any) -> None: ...
        def __enter__(self) -> "Route":
            return self

        def __exit__(self, *_: object) -> None: ...
        def connect(self, _: object) -> None: ...
        def getsockname(self) -> tuple[str, int]:
            return Route.own, 1

    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(2, 2, 17, "", ("m", 9))])
    monkeypatch.setattr(socket, "socket", Route)
    addresses = {"lo": "127.0.0.1", "eth0": "192.168.0.4", "ib0": "10.0.0.4"}
    listed = {name: [SimpleNamespace(address=each)] for name, each in addresses.items()}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: listed)
    known = {"10.0.0.4": "ib0", "127.0.0.1": None, "10.9.9.9": None}
    for Route.own, interface in known.items():
        assert interface_to("m") == interface


def test_a_rank_raises_a_low_limit_of_open_files_as_far_as_it_may() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] // 2, before[1]))
        raise_open_files_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
