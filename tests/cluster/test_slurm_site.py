"""Slurm's facts about a site, as `sinfo` and `sacctmgr` of Slurm 22 to 25 write it."""

import pytest

from scaling.cluster import slurm_site
from scaling.cluster.slurm_site import minutes_of, parse_kinds, query_slurm

SINFO = """\
debug|2|(null)|64|256000|30:00
gpu*|14|gpu:h100:8(S:0-1)|96|2063000+|1-00:00:00
gpu*|2|gpu:a100:4|64|1000000|1-00:00:00
long|40|gpu:4,tmp:1|64|512000|infinite
"""


def answers(**texts):
    return lambda command: texts.get(
        command[3] if command[0] == "sacctmgr" else command[0].removesuffix("control")
    )


def test_nodes_of_a_partition_with_other_gpus_are_kinds_of_their_own():
    debug, many, few, long = parse_kinds(SINFO)
    assert (many.partition, many.default, many.nodes) == ("gpu", True, 14)
    assert (many.gpus_per_node, many.gpu_type, many.cpus_per_node) == (8, "h100", 96)
    assert (few.partition, few.gpu_type, few.nodes) == ("gpu", "a100", 2)
    assert (debug.gpus_per_node, debug.gpu_type, debug.max_minutes) == (0, None, 30)
    assert (long.gpus_per_node, long.gpu_type, long.max_minutes) == (4, None, None)


def test_nodes_with_the_same_gpus_count_together_with_the_smallest_memory():
    (kind,) = parse_kinds("gpu*|2|gpu:4|64|500000|30:00\ngpu*|3|gpu:4|48|900000|30:00\n")
    assert (kind.nodes, kind.cpus_per_node, kind.memory_mb) == (5, 48, 500000)


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("30:00", 30), ("2:30:00", 150), ("1-00:00:00", 1440), ("infinite", None), ("n/a", None)],
)
def test_a_time_limit_is_read_in_minutes(text, minutes):
    assert minutes_of(text) == minutes


def test_a_sweep_would_run_where_gpus_are_on_the_default_partition_first():
    site = query_slurm(answers(sinfo=SINFO))
    assert site is not None
    assert site.best.partition == "gpu"


def test_the_default_account_comes_first_and_each_is_said_once():
    site = query_slurm(answers(sinfo=SINFO, user="ml\n", assoc="bio|normal||\nml|normal,high||\n"))
    assert site is not None
    assert site.accounts == ("ml", "bio")
    assert site.qos == ("normal", "high")


def test_limits_are_those_of_the_user_and_of_the_default_qos():
    texts = {
        "assoc": "ml|normal,high|normal|200\n",
        "qos": "normal|50\nhigh|1\n",
        "s": "DefMemPerCPU            = 512\nMaxMemPerNode           = UNLIMITED\n",
    }
    site = query_slurm(answers(sinfo=SINFO, **texts))
    assert site is not None
    assert site.max_submit_jobs == 50
    assert site.default_memory == "DefMemPerCPU=512"


@pytest.mark.parametrize("text", [None, "", "slurm_load_partitions: Unable to contact\n"])
def test_a_slurm_that_does_not_answer_is_none(text):
    assert query_slurm(answers(sinfo=text)) is None


def test_a_machine_without_slurm_has_none(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert slurm_site.query_slurm() is None
