"""Slurm's facts about a site, as `sinfo` and `sacctmgr` of Slurm 22 to 25 write it."""

import pytest

from scaling.cluster import slurm_site
from scaling.cluster.slurm_site import parse_partitions, query_slurm

SINFO = """\
debug|2|(null)|64|256000|30:00
gpu*|14|gpu:h100:8(S:0-1)|96|2063000+|1-00:00:00
gpu*|2|gpu:a100:4|64|1000000|1-00:00:00
long|40|gpu:4,tmp:1|64|512000|infinite
"""


def answers(**texts):
    return lambda command: texts.get("sinfo" if command[0] == "sinfo" else command[3])


def test_a_partition_is_read_by_its_most_frequent_kind_of_node():
    debug, gpu, long = parse_partitions(SINFO)
    assert (gpu.name, gpu.default, gpu.nodes) == ("gpu", True, 14)
    assert (gpu.gpus_per_node, gpu.gpu_type, gpu.cpus_per_node) == (8, "h100", 96)
    assert (debug.gpus_per_node, debug.gpu_type) == (0, None)
    assert (long.gpus_per_node, long.gpu_type, long.time_limit) == (4, None, "infinite")


def test_a_sweep_would_run_where_gpus_are_on_the_default_partition_first():
    site = query_slurm(answers(sinfo=SINFO))
    assert site is not None
    assert site.best.name == "gpu"


def test_the_default_account_comes_first_and_each_is_said_once():
    site = query_slurm(answers(sinfo=SINFO, user="ml\n", assoc="bio|normal\nml|normal,high\n"))
    assert site is not None
    assert site.accounts == ("ml", "bio")
    assert site.qos == ("normal", "high")


@pytest.mark.parametrize("text", [None, "", "slurm_load_partitions: Unable to contact\n"])
def test_a_slurm_that_does_not_answer_is_none(text):
    assert query_slurm(answers(sinfo=text)) is None


def test_a_machine_without_slurm_has_none(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert slurm_site.query_slurm() is None
