"""The share of the processors that others took from ranks."""

import pytest

from scaling.cluster.processors import Processors, cores_of, others_share


def use(own, used, **changes):
    plain = {"cpus": "0,1", "cores": 2, "quota": None, "threads": 1, "seconds": 10.0,
             "own": own, "used": used, "queued": None, "stolen": 0.0, "limited": None}  # fmt: skip
    return "host", plain | changes


@pytest.mark.parametrize(
    ("ranks", "share"),
    [
        ([use(10, 10)], 0),  # alone
        ([use(10, 20)], 0),  # somebody else on the core that is free
        ([use(7, 20)], 0.3),
        ([use(10, 20), use(10, 20)], 0),
        ([use(6, 20), use(6, 20)], 0.4),
        ([use(3, 12), use(3, 12), use(3, 12), use(3, 12)], 0),  # they only wait for each other
        ([use(3, 20), use(3, 20), use(3, 20), use(3, 20)], 0.4),
        ([use(8, 8, stolen=2.0)], 0.2),  # another virtual machine
        # half of the time they wait for each other, and others run meanwhile
        ([use(5, 20, queued=0.0), use(5, 20, queued=0.0)], 0),
        ([use(6, 20, queued=2.0), use(6, 20, queued=2.0)], 0.25),
        # the scheduler sees no queue where two threads share a core
        ([use(10, 15, queued=0.0, cores=1)], 0.5),
        # Slurm bound each rank to a core of its own
        ([use(10, 10, cpus="0", cores=1), use(5, 10, cpus="1", cores=1)], 0.5),
        # 64 cores that others fill up to those that the ranks want
        ([use(10, 600, cores=64), use(10, 600, cores=64)], 0),
        ([use(8, 640, cores=64), use(8, 640, cores=64)], 0.2),
        # a container may use two of them, and a neighbour in it takes half of one
        ([use(8, 300, cores=64, quota=2.0, limited=20.0) for _ in range(2)], 0.2),
        ([use(0.1, 0.2, seconds=0.1)], None),  # ticks of the kernel are too coarse
        ([], None),
    ],
)  # fmt: skip
def test_others_take_what_ranks_wanted_and_did_not_get(ranks, share):
    assert others_share(ranks) == (None if share is None else pytest.approx(share))


def test_the_host_with_the_most_counts():
    quiet, busy = use(10, 10), use(5, 20)
    assert others_share([quiet, ("another", busy[1])]) == pytest.approx(0.5)


def test_two_threads_of_a_core_are_one_core_and_a_quota_is_found(tmp_path):
    for cpu, siblings in enumerate(("0-1", "0-1", "2-3")):
        topology = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(siblings + "\n")
    assert cores_of((0, 1, 2, 7), tmp_path) == 3
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("1:cpu:/x\n0::/pod/box\n")
    pod = tmp_path / "sys/fs/cgroup/pod"
    (pod / "box").mkdir(parents=True)
    for folder, most in ((pod, "150000 100000"), (pod / "box", "max 100000")):
        (folder / "cpu.max").write_text(most + "\n")
        (folder / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    assert Processors.read(tmp_path).limited == (1.5, 2.5)
    (pod / "cpu.stat").unlink()
    assert Processors.read(tmp_path).limited is None
