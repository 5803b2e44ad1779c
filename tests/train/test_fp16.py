"""fp16 without a GPU: DeepSpeed trains in it on a CPU that answers as CUDA does.

So it also takes the path of CUDA, with streams and events on which nothing takes time.
"""

import json
import os
import subprocess

import pytest

from scaling.launch.start.environment import rank_environment
from scaling.layout.engines import engine_refusals
from scaling.study.point import Point
from tests.points import tiny_point
from tests.train.reference import LEARNING_RATE, reference_curve
from tests.warm import warm_rank

OVERFLOWING = 2.0**40  # a loss scale with which fp16 has no gradients

TRAINED = f"""
import json, os, sys
from unittest import mock
import torch, torch.distributed as dist
from scaling.launch.start.local import rank_variables
from scaling.layout.engines import engine_module
from scaling.study.point import point_from_json
from scaling.train.data import Feed
from scaling.train.engines.trainer import build, make_blueprint
from scaling.train.parallel.groups import Groups

point = point_from_json(sys.argv[1])
os.environ.update(rank_variables(0, 1))
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
engine_module("deepspeed", "rehearsal").act_like_cuda(lambda kind: None)
engine = engine_module("deepspeed", "engine")
engine.LEARNING_RATE = {LEARNING_RATE}
engine.join(0)
groups = Groups(0, point.layout, timeout_s=60)
feed = Feed(point, groups.place, [1] * 99, first=0, device=torch.device("cpu"))
losses, skipped = [], []
with mock.patch.object(torch.Tensor, "record_stream"):
    trainer = build(make_blueprint(point, groups, torch.device("cpu")), groups)
    for step in range(point.measured_steps + 1):
        if step == point.measured_steps:
            trainer.engine.optimizer.loss_scaler.cur_scale = {OVERFLOWING}
        trainer.step(feed(step))
        losses.append(trainer.loss())
        skipped.append(trainer.skipped_steps)
print(json.dumps([losses, skipped]))
"""


def trained(point: Point) -> tuple[list[float], list[int]]:
    """The losses of the measured steps and one more that overflows; the steps skipped by then."""
    ran = subprocess.run(
        [warm_rank(), "-c", TRAINED, point.to_json()],
        env=rank_environment(point, os.environ), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    losses, skipped = json.loads(ran.stdout.splitlines()[-1])
    return losses, skipped


@pytest.mark.ranks
def test_it_trains_what_fp32_does_and_counts_the_steps_that_it_skips() -> None:
    point = tiny_point(precision="fp16", zero_stage=1, measured_steps=4)
    losses, skipped = trained(point)
    assert losses[:4] == pytest.approx(
        reference_curve(tiny_point(measured_steps=4)).losses, abs=2e-4
    )
    assert skipped == [0, 0, 0, 0, 1]


def test_fp16_without_zero_has_vanishing_gradients() -> None:
    (refused,) = engine_refusals(tiny_point().shape, tiny_point(precision="fp16").layout)
    assert refused.startswith("precision=fp16 at zero_stage=0: DeepSpeed divides gradients by a")
