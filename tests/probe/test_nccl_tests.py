"""The output of nccl-tests becomes probes; what it does not tell follows or is asked for."""

import time

import pytest

from scaling.errors import InputError
from scaling.probe.nccl_tests import read_nccl_tests

NCCL = """\
# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 1024 maxBytes 1073741824 step: 1024(factor) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid 101 on    node001 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid 102 on    node001 device  1 [0000:43:00] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid 201 on    node002 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid 202 on    node002 device  1 [0000:43:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)
        1024           256     float     sum      -1    24.59    0.04    0.06      0    24.44 0.04
     1048576        262144     float     sum      -1    62.10   16.89   25.33      0    61.80 16.97
  1073741824     268435456     float     sum      -1  5120.00  209.72  314.57    N/A  5118.00 209.8
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 113.32
"""
TABLE = "\n".join(line for line in NCCL.splitlines() if line[:1] != "#")


@pytest.fixture
def probes_of(tmp_path):
    """Reads text as the output on a cluster of H100."""

    def read(text, **options):
        path = tmp_path / "nccl.txt"
        path.write_text(text)
        return read_nccl_tests(path, cluster="mine", gpu="h100-80gb", gpus_per_node=8, **options)

    return read


def test_each_message_size_is_a_probe_with_rates(probes_of):
    probes = probes_of(NCCL)
    assert [probe.message_bytes for probe in probes] == [1024, 2**20, 2**30]
    assert {(p.kind, p.ranks, p.nodes, p.groups, p.outcome) for p in probes} == {
        ("all_reduce", 4, 2, 1, "ok")
    }
    assert probes[2].seconds == pytest.approx(5.12e-3)
    assert probes[2].bus_bytes_per_s == pytest.approx(314.57e9)


def test_each_of_several_tests_has_its_own_name_and_ranks(probes_of):
    probes = probes_of(NCCL + NCCL.replace("all_reduce_perf", "alltoall_perf"))
    assert [probe.kind for probe in probes] == ["all_reduce"] * 3 + ["all_to_all"] * 3
    assert {probe.ranks for probe in probes} == {4}


def test_groups_that_run_at_once_and_wrong_results_are_told(probes_of):
    split = NCCL.replace("Rank  1 Group  0", "Rank  1 Group  1")
    split = split.replace("Rank  3 Group  0", "Rank  3 Group  1").replace("N/A", "  7")
    probes = probes_of(split)
    assert {(p.ranks, p.nodes, p.groups) for p in probes} == {(2, 2, 2)}
    assert [p.outcome for p in probes] == ["ok", "ok", "wrong"]
    assert [p.seconds is None for p in probes] == [False, False, True]


def test_bus_over_algorithm_bandwidth_tells_an_all_reduce_and_its_ranks(probes_of):
    assert {(p.kind, p.ranks, p.nodes) for p in probes_of(TABLE)} == {("all_reduce", 4, 1)}
    eight = TABLE.replace("314.57", "367.01").replace("25.33", "29.56")  # 1.75
    assert {p.ranks for p in probes_of(eight)} == {8}


def test_a_ratio_of_several_collectives_is_asked_about(probes_of):
    gathered = TABLE.replace("314.57", "183.51").replace("25.33", "14.78")  # 0.875
    with pytest.raises(InputError, match=r"is 0\.875 times .* give --collective, one of all_red"):
        probes_of(gathered)
    assert {p.ranks for p in probes_of(gathered, collective="all_gather")} == {8}
    with pytest.raises(InputError, match="tells no ranks: give --ranks"):
        probes_of(gathered, collective="broadcast")
    assert {p.ranks for p in probes_of(gathered, collective="broadcast", ranks=16)} == {16}
    with pytest.raises(InputError, match="--collective gather: did you mean"):
        probes_of(gathered, collective="gather")


@pytest.mark.parametrize(
    "text",
    [
        "", "step 1 of 2\n", "\x00\xff", NCCL.replace("5120.00", "never"),
        "\n".join(line for line in NCCL.splitlines() if "Rank" not in line or "Rank  0" in line),
    ],
)  # fmt: skip
def test_what_is_no_output_of_nccl_tests_is_refused_in_one_line(probes_of, text):
    with pytest.raises(InputError, match=r"nccl\.txt: ") as refused:
        probes_of(text)
    assert "\n" not in str(refused.value)


def test_a_line_of_megabytes_takes_no_longer_than_its_length(probes_of):
    start = time.process_time()
    assert len(probes_of(NCCL + "x " * 400_000 + "\n" + "9" * 2_000_000)) == 3
    assert time.process_time() - start < 5
