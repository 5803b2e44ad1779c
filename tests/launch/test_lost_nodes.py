"""Which nodes Slurm calls lost. That it does so when one is lost is shown in tests/slurm."""

import pytest

from scaling.launch.start.slurm import lost_nodes
from tests.processes import write_program

SINFO = """\
#!/bin/sh
[ "$3" = "--nodes=n[1-4]" ] && printf 'n1 alloc\\nn2 down*\\nn3 mix*\\nn3 mix*\\nn4 drng\\n'
"""


@pytest.fixture
def inside(tmp_path, monkeypatch):
    write_program(tmp_path / "sinfo", SINFO)
    monkeypatch.setenv("PATH", str(tmp_path))
    return {"SLURM_JOB_NODELIST": "n[1-4]"}


def test_a_node_that_is_down_is_lost_and_a_drained_one_goes_on(inside):
    assert lost_nodes(inside, silent=False) == ["n2 (down*)"]


def test_after_a_failure_a_node_that_does_not_answer_counts_too(inside):
    assert lost_nodes(inside, silent=True) == ["n2 (down*)", "n3 (mix*)"]


def test_lost_nodes_are_unknown_without_an_allocation_or_an_answer(inside, monkeypatch):
    assert lost_nodes({}, silent=True) == []
    monkeypatch.setenv("PATH", "")
    assert lost_nodes(inside, silent=True) == []
