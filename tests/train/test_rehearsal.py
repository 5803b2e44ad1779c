"""Waits of a rank's step for the host, counted in the engine itself on tensors without numbers."""

import dataclasses
import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest

from scaling.launch.start.environment import rank_environment
from scaling.study.point import Point
from tests.points import TINY, TINY_GPT, tiny_point
from tests.train.conftest import lacking, skip_if_lacking
from tests.warm import warm_rank

pytestmark = pytest.mark.slow

SHORT = dataclasses.replace(TINY, num_layers=2)
MIXTURE = dataclasses.replace(SHORT, num_experts=4, experts_per_token=2, expert_ffn_hidden_size=48)

Answer = dict[str, Any]

# Waits of one step, in bf16, on rank 0. Each lets the host wait for the device, and on a GPU
# nothing is queued meanwhile: a new one slows every step.
# ZeRO-1 waits once, for what it reduces behind backward; ZeRO-2 for each micro-batch's; ZeRO-3 also
# for the norm of its gradients, by which it looks for overflow. ZeRO-0 looks at each gradient
# (21 of 21), hpZ waits for each weight's second copy, an optimizer on the host for each gradient.
# Stages that cut what they send over tp ranks read how it was cut, in every micro-batch.
WAITS: list[tuple[dict[str, Any], dict[str, int]]] = [
    ({"zero_stage": 0}, {"bool": 21, "float": 1, "item": 2}),
    ({"dp": 2, "zero_stage": 1, "gradient_accumulation_steps": 2}, {"synchronize": 1}),
    ({"dp": 2, "zero_stage": 2, "gradient_accumulation_steps": 2}, {"synchronize": 2}),
    ({"dp": 2, "zero_stage": 3, "gradient_accumulation_steps": 2}, {"bool": 1, "synchronize": 3}),
    ({"dp": 4, "zero_stage": 3, "zero_shard_size": 2}, {"bool": 1, "synchronize": 23}),
    ({"dp": 2, "zero_stage": 2, "optimizer_offload": "cpu"},
     {"bool": 11, "item": 12, "synchronize": 12}),
    ({"pp": 2, "tp": 2, "zero_stage": 1, "gradient_accumulation_steps": 4}, {"tolist": 8}),
    ({"pp": 2, "shape": TINY, "pipeline_schedule": "dualpipev", "zero_stage": 1,
      "gradient_accumulation_steps": 4}, {}),
    # torch's engine waits only for gradients that come to the host
    ({"engine": "torch", "dp": 4, "zero_stage": 3, "zero_shard_size": 2}, {}),
    ({"engine": "torch", "dp": 2, "zero_stage": 2, "optimizer_offload": "cpu"},
     {"synchronize": 21}),
    ({"engine": "torch", "pp": 2, "shape": TINY, "pipeline_schedule": "zbv", "zero_stage": 1,
      "gradient_accumulation_steps": 4}, {}),
    # of two layers each reads how many tokens go where before they travel; else it reads nothing
    ({"shape": MIXTURE, "engine": "torch", "zero_stage": 0, "routing": "skewed:2"}, {}),
    ({"shape": MIXTURE, "dp": 2, "ep": 2, "zero_stage": 3},
     {"bool": 1, "synchronize": 3, "tolist": 2}),
]  # fmt: skip

SPLIT = {"tp": 2, "pp": 2, "zero_stage": 1, "gradient_accumulation_steps": 2}
FEW_AND_MANY = [  # the last of 4 and of 2048 ranks
    (tiny_point(shape=TINY_GPT, global_batch_size=2 * dp, dp=dp, **SPLIT), 4 * dp - 1)
    for dp in (1, 512)
]


def rehearse(asked: Sequence[tuple[Point, int]], *, steps: int = 2) -> list[Answer]:
    requests = [
        {"point": json.loads(point.to_json()), "rank": rank, "steps": steps}
        for point, rank in asked
    ]
    done = subprocess.run(
        [warm_rank(), "-m", "scaling.train.rehearsal.rehearsal"],
        input=json.dumps(requests) + "\n",
        capture_output=True,
        text=True,
        env=rank_environment(asked[0][0], os.environ),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: list[Answer] = json.loads(done.stdout)
    return answers


def asked_for(layout: dict[str, Any]) -> tuple[Point, int]:
    return tiny_point(**{"shape": SHORT, "precision": "bf16", "attention": "flash2"} | layout), 0


ASKED = [*(asked_for(layout) for layout, _ in WAITS), *FEW_AND_MANY]


@pytest.fixture(scope="module")
def answers() -> dict[int, Answer]:
    """By their place in ASKED."""
    able = [index for index, (point, _) in enumerate(ASKED) if lacking(point) is None]
    return dict(zip(able, rehearse([ASKED[index] for index in able]), strict=True))


@pytest.mark.parametrize("case", range(len(WAITS)), ids=[str(layout) for layout, _ in WAITS])
def test_a_step_waits_for_the_device_no_more_often_than_is_known(
    answers: dict[int, Answer], case: int
) -> None:
    skip_if_lacking(ASKED[case][0])
    assert answers[case]["waits"] == WAITS[case][1]


def test_building_says_how_far_it_is(answers: dict[int, Answer]) -> None:
    for answer in answers.values():
        assert answer["beats"] == ["building the model", "building the engine"]


def test_a_rank_of_two_thousand_is_rehearsed_as_one_of_four(
    answers: dict[int, Answer],
) -> None:
    """Waits do not grow with the ranks."""
    one, other = (answers[len(WAITS) + index] for index in range(len(FEW_AND_MANY)))
    assert one["waits"] == other["waits"] == {"bool": 1, "tolist": 2}
