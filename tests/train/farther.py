"""Layouts beyond the covering array: larger degrees, other shapes."""

import dataclasses
from typing import Any

from scaling.layout.shapes import ModelShape
from tests.points import TINY, TINY_GPT

TWO_STAGES = {"pp": 2, "zero_stage": 1, "gradient_accumulation_steps": 2}
CUBE = {"tp": 2, "dp": 2, "sequence_parallel": True}
RING = {"cp_style": "ring", "attention": "flash2"}
SPLIT = {"pp": 2, "gradient_accumulation_steps": 4}
EIGHT_LAYERS = dataclasses.replace(TINY, num_layers=8)
OF_BOTH: dict[str, tuple[ModelShape, dict[str, Any]]] = {
    "an odd number of weights, sharded": (
        dataclasses.replace(TINY, hidden_size=95), {"dp": 2, "zero_stage": 2}
    ),
    "three layers on two stages": (dataclasses.replace(TINY, num_layers=3), TWO_STAGES),
    "a stage with the head alone": (dataclasses.replace(TINY, vocab_size=2048), TWO_STAGES),
}  # fmt: skip
OF_TORCH: dict[str, tuple[ModelShape, dict[str, Any]]] = OF_BOTH | {
    # gradients that are summed where they lie, over the ranks that hold the same weights alone
    "tp2 dp2": (TINY, {"tp": 2, "dp": 2, "zero_stage": 0}),
    "pp4 in eight chunks": (
        EIGHT_LAYERS,
        {"pp": 4, "pipeline_schedule": "interleaved", "virtual_stages": 2,
         "gradient_accumulation_steps": 8},
    ),
    "pp4 zbv": (
        dataclasses.replace(EIGHT_LAYERS, tied_embeddings=True),
        {"pp": 4, "pipeline_schedule": "zbv", "gradient_accumulation_steps": 8},
    ),
    "pp2 tp2 dp2 zero3": (TINY, SPLIT | CUBE | {"zero_stage": 3}),
    "tp2 dp4 zero2 in twos": (TINY, {"tp": 2, "dp": 4, "zero_stage": 2, "zero_shard_size": 2}),
    "cp4 zero3 around a ring of more ranks than heads": (
        dataclasses.replace(TINY, num_kv_heads=2),
        {"cp": 4, **RING, "activation_checkpointing": "full", "zero_stage": 3},
    ),
    "copies in every rank": (TINY, {"dp": 4, "zero_stage": 2, "zero_shard_size": 1}),
}  # fmt: skip
FARTHER: dict[str, tuple[ModelShape, dict[str, Any]]] = OF_BOTH | {
    "tp4 zero1": (TINY, {"tp": 4, "zero_stage": 1}),
    "cp4 zero2": (TINY, {"cp": 4, "zero_stage": 2}),
    "pp4 zero1": (TINY, {"pp": 4, "zero_stage": 1, "gradient_accumulation_steps": 8}),
    "pp2 tp2 dp2 zero1": (TINY, TWO_STAGES | CUBE),
    # weights beyond what ZeRO-3 keeps whole on every rank
    "dp2 zero3 of a large vocabulary": (
        dataclasses.replace(TINY, vocab_size=2048), {"dp": 2, "zero_stage": 3}
    ),
    # neighbours hold other weights: DeepSpeed's own groups would mix them
    "tp2 dp4 zero3 in twos": (TINY, {"tp": 2, "dp": 4, "zero_stage": 3, "zero_shard_size": 2}),
    "tp2 cp2 dp2 zero3": (TINY, {"tp": 2, "cp": 2, "dp": 2, "zero_stage": 3}),
    "no gate": (dataclasses.replace(TINY, gated_mlp=False), {"zero_stage": 1}),
    "a key for every head": (dataclasses.replace(TINY, num_kv_heads=8), {"zero_stage": 1}),
    "tp2 cp2 zero1 around a ring, learned positions": (
        TINY_GPT,
        {"tp": 2, "cp": 2, **RING, "sequence_parallel": True, "zero_stage": 1,
         "gradient_accumulation_steps": 2},
    ),
    **{
        f"torch {name}": (shape, {"engine": "torch", **layout})
        for name, (shape, layout) in OF_TORCH.items()
    },
}  # fmt: skip
