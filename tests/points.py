"""A small point that tests change only in what they are about."""

import dataclasses
from typing import Any

from scaling.layout.layout import Layout
from scaling.layout.shapes import ModelShape
from scaling.study.point import Point

TINY = ModelShape(
    num_layers=4, hidden_size=64, num_heads=8, num_kv_heads=4, head_dim=8, ffn_hidden_size=96,
    vocab_size=256,
)  # fmt: skip
TINY_GPT = dataclasses.replace(
    TINY, family="gpt", num_kv_heads=8, gated_mlp=False, max_positions=32
)
TINY_T5 = dataclasses.replace(
    TINY, family="t5", num_layers=2, num_encoder_layers=3, num_kv_heads=8, head_dim=16
)

# A hundred times the rate of a study: an update that is wrong shows in the second or third loss.
LEARNING_RATE = 1e-3
WALKED_STEPS = 2  # of a rehearsal: only the second starts with optimizer states


def tiny_point(
    *,
    shape: ModelShape = TINY,
    global_batch_size: int = 8,
    warmup_steps: int = 0,
    measured_steps: int = 10,
    time_limit_s: float = 400.0,
    gpus_per_node: int = 8,
    **layout: Any,
) -> Point:
    """A point with four small layers on a CPU. Its micro-batch follows from the global batch."""
    replicas = layout.get("dp", 1)
    rounds = layout.get("gradient_accumulation_steps", 1)
    layout.setdefault("micro_batch_size", global_batch_size // (replicas * rounds))
    plain: dict[str, Any] = {"seq_length": 32, "precision": "fp32", "attention": "math"}
    return Point(
        study="tiny", study_kind="strong", point_id="tiny", repeat=0, model="tiny", shape=shape,
        cluster="laptop", gpu="cpu", gpus_per_node=gpus_per_node, peak_flop_per_s=None,
        layout=Layout(**(plain | layout)), seed=1, warmup_steps=warmup_steps,
        measured_steps=measured_steps, time_limit_s=time_limit_s,
    )  # fmt: skip
