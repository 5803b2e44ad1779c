"""Software and machine of a row."""

import dataclasses
import subprocess

import pytest

from scaling.launch.make_row import git_commit, provenance_of
from scaling.launch.start.rank_exits import oom_kills
from scaling.record.rank_files import Stack

STACK = Stack(
    host="node1", torch_version="2.13.0", deepspeed_version="0.19.8", gpu_name="a GPU",
    driver_version="570.1", cuda_version="12.8", nccl_version="2.27.3",
)  # fmt: skip


def test_the_fingerprint_forgets_the_host_and_knows_the_driver():
    there = dataclasses.replace(STACK, host="node2")
    updated = dataclasses.replace(STACK, driver_version="575.0")
    here, same, other = (
        provenance_of(stack)["stack_fingerprint"] for stack in (STACK, there, updated)
    )
    assert here == same != other


def test_layouts_with_and_without_an_optional_kernel_share_a_fingerprint():
    plain = dataclasses.replace(STACK, kernel_packages={"liger-kernel": "0.8.5"})
    fused = dataclasses.replace(plain, liger_kernel_version="0.8.5")
    updated = dataclasses.replace(plain, kernel_packages={"liger-kernel": "0.8.6"})
    columns = [provenance_of(stack) for stack in (plain, fused, updated, STACK)]
    first, second, *others = (one["stack_fingerprint"] for one in columns)
    assert first == second not in others
    assert columns[1]["liger_kernel_version"] == "0.8.5"
    assert "kernel_packages" not in columns[0]


def test_without_ranks_versions_are_the_installed_ones():
    columns = provenance_of(None)
    assert columns["deepspeed_version"]
    assert columns["gpu_name"] is None


def test_the_commit_is_that_of_ones_own_checkout(tmp_path):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert git_commit(tmp_path) is None  # without a commit
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert git_commit(tmp_path) == head.stdout.strip()
    (tmp_path / "site-packages").mkdir()  # an installed package is not of the repository around it
    assert git_commit(tmp_path / "site-packages") is None


def write(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("cgroup", "counter"),
    [
        ("0::/job\n", "sys/fs/cgroup/job/memory.events"),
        ("0::/on/the/host\n", "sys/fs/cgroup/memory.events"),
        ("9:cpu:/\n4:memory:/job\n0::/\n", "sys/fs/cgroup/memory/job/memory.oom_control"),
        ("4:cpu,memory:/job\n", "sys/fs/cgroup/memory/job/memory.oom_control"),
        ("4:memory:/on/the/host\n", "sys/fs/cgroup/memory/memory.oom_control"),
        ("0::/\n", "proc/vmstat"),
    ],
    ids=["v2", "v2 in a container", "v1", "v1 joined", "v1 in a container", "none of its own"],
)
def test_oom_kills_are_read_where_the_kernel_counts_them(tmp_path, cgroup, counter):
    write(tmp_path, "proc/self/cgroup", cgroup)
    write(tmp_path, counter, "oom 9\nunder_oom 0\noom_kill 3\noom_group_kill 0\n")
    assert oom_kills(tmp_path) == 3
