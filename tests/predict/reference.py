"""A step model written a second time, one layout at a time and without numpy.

It knows nothing of scaling.predict: matmuls at a fixed rate, ring all-reduces, 1F1B, exact memory.
Rows made by it are what calibration must learn from.
"""

import csv
import itertools
import random
from pathlib import Path
from typing import Any

PEAK = 312e12  # A100 bf16
CAPACITY = 40 * 2**30 * 0.9895
MODELS = {"ref-1b": (24, 2048, 16), "ref-3b": (32, 2560, 20), "ref-7b": (32, 4096, 32)}


def step_time_s(layers: int, hidden: int, tp: int, pp: int, dp: int, micro: int, gas: int) -> float:
    """Seconds: 6 FLOPs a weight and token at 62 % of peak, plus tp and dp rings and the bubble."""
    tokens = micro * 2048
    weights = 12 * hidden**2
    attention = 3.5 * 2 * 2048 * hidden  # flash, causal half
    layer = (6 * weights + attention) * tokens / tp / (PEAK * 0.62)
    layer += tokens * hidden * 2 * 90 / 1.3e12  # element-wise traffic
    if tp > 1:
        layer += 4 * (2 * (tp - 1) / tp * tokens * hidden * 2 / 220e9 + 25e-6)
    layer = max(layer, 2.2e-3)  # the host cannot launch faster
    head = 6 * 32000 * hidden * tokens / tp / (PEAK * 0.62)
    stage = layers / pp * layer + head
    pipeline = (gas + pp - 1) * stage
    local = (layers * weights / pp + 32000 * hidden) / tp
    gradients = 2 * (dp - 1) / dp * local * 4 / (25e9 if tp * dp > 8 else 220e9)
    return pipeline + 0.5 * gradients + local * 20 / 1.3e12 + 0.01


def memory_bytes(
    layers: int, hidden: int, tp: int, pp: int, dp: int, micro: int, gas: int
) -> float:
    """Bytes of the first stage: ZeRO-1 state, 10 + 40 / tp a token and hidden element, logits."""
    local = (layers * 12 * hidden**2 / pp + 2 * 32000 * hidden) / tp
    state = local * (2 + 4 + 12 / dp)
    kept = micro * 2048 * hidden * (10 + 40 / tp)
    logits = micro * 2048 * 32000 / tp * 10 if pp == 1 else 0.0
    return state + layers / pp * min(gas, pp) * kept + logits + 1e9


def rows(seed: int = 0, noise: float = 0.01) -> list[dict[str, Any]]:
    """A sweep of three models on 8, 16 and 32 A100: some rows run, some run out of memory."""
    chance = random.Random(seed)
    found = []
    for (name, (layers, hidden, heads)), world, tp, pp, micro in itertools.product(
        MODELS.items(), (8, 16, 32), (1, 2, 4), (1, 2, 4), (1, 2, 4)
    ):
        dp = world // (tp * pp)
        batch = 256
        if dp * tp * pp != world or batch % (dp * micro):
            continue
        gas = batch // (dp * micro)
        need = memory_bytes(layers, hidden, tp, pp, dp, micro, gas)
        ran = need < CAPACITY
        seconds = step_time_s(layers, hidden, tp, pp, dp, micro, gas) * chance.lognormvariate(
            0, noise
        )
        found.append(
            {
                "model": name, "num_layers": layers, "hidden_size": hidden, "num_heads": heads,
                "num_kv_heads": heads, "ffn_hidden_size": 4 * hidden, "gated_mlp": "false",
                "vocab_size": 32000, "tied_embeddings": "false", "seq_length": 2048,
                "cluster": "a100-40gb-dgx", "framework": "reference", "gpus_per_node": 8,
                "world_size": world, "tp": tp, "pp": pp, "cp": 1, "dp": dp, "zero_stage": 1,
                "sequence_parallel": "false", "micro_batch_size": micro,
                "global_batch_size": batch, "activation_checkpointing": "none",
                "attention": "flash2", "fused_norm": "false", "precision": "bf16",
                "outcome": "ok" if ran else "oom",
                "step_time_s": f"{seconds:.6g}" if ran else "", "peak_memory_bytes": "",
            }
        )  # fmt: skip
    return found


def write_csv(path: Path, records: list[dict[str, Any]]) -> Path:
    """The records as a CSV file in the project's names."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    return path
