"""Python calls and hooks of a layer and micro-batch: what the host does while the GPU waits."""

import json
import os
import subprocess
from typing import Any

import pytest

from scaling.launch.start.environment import rank_environment
from scaling.launch.start.local import rank_variables
from tests.conftest import PROJECT
from tests.points import tiny_point
from tests.warm import warm_rank

pytestmark = pytest.mark.ranks

# Python functions called per layer and micro-batch, forward and backward: DeepSpeed 0.19.8.
MOST_CALLS = {"zero1": 250, "zero3": 3000, "fsdp2": 2200}


@pytest.fixture(scope="module")
def counted() -> dict[str, Any]:
    """The counts of `tests.train.host_work`, in a process of its own."""
    point = tiny_point()
    environment = rank_environment(point, os.environ) | rank_variables(0, 1)
    ran = subprocess.run(
        [warm_rank(), "-m", "tests.train.host_work"],
        env=environment, cwd=PROJECT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", MOST_CALLS)
def test_a_layer_calls_no_more_python_than_is_known(counted: dict[str, Any], name: str) -> None:
    assert 0.5 * MOST_CALLS[name] < counted[name]["calls"] < MOST_CALLS[name]


def test_zero3_hooks_a_layer_and_none_of_its_blocks(counted: dict[str, Any]) -> None:
    assert counted["zero3"]["hooked"] == ["Layer"]
    assert counted["zero1"]["hooked"] == []
