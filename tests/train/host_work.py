"""Counts Python calls and hooked modules per layer and micro-batch, and prints them as JSON."""

import json
import os
import sys
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined] # at run time only

from scaling.layout.engines import engine_module
from scaling.layout.shapes import ModelShape
from scaling.study.point import Point
from scaling.train.data import Feed
from scaling.train.engines.trainer import build, make_blueprint
from scaling.train.model.decoder import Layer
from scaling.train.parallel.groups import Groups
from tests.points import tiny_point

CPU = torch.device("cpu")
CASES: dict[str, dict[str, Any]] = {
    "zero1": {"zero_stage": 1},
    "zero3": {"zero_stage": 3},
    "fsdp2": {"zero_stage": 3, "engine": "torch"},
}
FEW, MANY = 2, 4  # layers
MICRO_BATCHES = 2
WARMUP_STEPS = 3  # DeepSpeed learns the order of weights in the first


def point_of(layers: int, layout: dict[str, Any]) -> Point:
    shape = ModelShape(
        num_layers=layers, hidden_size=64, num_heads=4, num_kv_heads=4, head_dim=16,
        ffn_hidden_size=128, vocab_size=64,
    )  # fmt: skip
    more = {"gradient_accumulation_steps": MICRO_BATCHES, "precision": "bf16"}
    return tiny_point(shape=shape, seq_length=16, **more, **layout)


def counted(point: Point) -> tuple[int, list[str]]:
    """Python calls of a step, and the names of a layer's modules that have hooks."""
    groups = Groups(0, point.layout, timeout_s=60)
    trainer = build(make_blueprint(point, groups, CPU), groups)
    steps = [MICRO_BATCHES] * (WARMUP_STEPS + 1)
    feed = Feed(point, groups.place, steps, first=0, device=CPU)
    for step in range(WARMUP_STEPS):
        trainer.step(feed(step))
    batches, calls = feed(WARMUP_STEPS), 0

    def count(_: FrameType, event: str, __: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    trainer.step(batches)
    sys.setprofile(None)
    layer = next(each for each in trainer.engine.module.modules() if isinstance(each, Layer))
    hooked = [type(each).__name__ for each in layer.modules() if each._forward_pre_hooks]
    return calls, hooked


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    found = {}
    for name, layout in CASES.items():
        engine = point_of(FEW, layout).layout.engine
        engine_module(engine, "engine").join(int(os.environ.get("MASTER_PORT", "29501")))
        few, many = (counted(point_of(layers, layout)) for layers in (FEW, MANY))
        calls = (many[0] - few[0]) / (MANY - FEW) / MICRO_BATCHES
        found[name] = {"calls": calls, "hooked": few[1]}
    sys.stdout.write("\n" + json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
