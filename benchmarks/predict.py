"""Layouts per second of the vectorised prediction, compared with one call per layout.

    python benchmarks/predict.py [--layouts 200000]

One core, memory and step time with all their terms, data-sheet parameters, a table already read.
"""

import argparse
import os

# One core, also for numpy's threads; this must come before numpy is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import time

import numpy as np
import pyarrow as pa

from scaling.importing.reader import Table
from scaling.layout.layout import Layout
from scaling.predict.cost.memory import memory_of
from scaling.predict.cost.model import predict
from scaling.predict.cost.step import step_of
from scaling.predict.read.features import Points
from scaling.predict.read.inputs import inputs_of_layouts
from scaling.predict.read.points import points_from, points_of
from scaling.study.load import load_models

ONE_AT_A_TIME = 300
IN_MEMORY = 20_000
SEED = 0


def table_of(count: int) -> pa.Table:
    """Random layouts of Llama-like models on 8 to 2,048 H100."""
    random = np.random.default_rng(SEED)

    def one_of(*values: object) -> pa.Array:
        return pa.array([values[i] for i in random.integers(0, len(values), count)])

    layers = one_of(32, 40, 80)
    columns = {
        "model": pa.array([f"llama-{n}" for n in layers.to_pylist()]),
        "num_layers": layers,
        "hidden_size": one_of(4096, 5120, 8192),
        "num_heads": one_of(32, 64),
        "ffn_hidden_size": one_of(11008, 13824, 28672),
        "gated_mlp": pa.array([True] * count),
        "vocab_size": one_of(32000, 128256),
        "seq_length": one_of(2048, 4096, 8192),
        "cluster": pa.array(["h100-80gb-dgx"] * count),
        "tp": one_of(1, 2, 4, 8),
        "pp": one_of(1, 2, 4, 8),
        "dp": one_of(1, 2, 4, 8, 16, 32),
        "zero_stage": one_of(0, 1, 3),
        "micro_batch_size": one_of(1, 2, 4),
        "gradient_accumulation_steps": one_of(1, 4, 16, 64),
        "activation_checkpointing": one_of("none", "full"),
        "attention": one_of("flash2", "flash3"),
        "sequence_parallel": one_of(True, False),
        "fused_norm": one_of(True, False),
        "precision": pa.array(["bf16"] * count),
    }
    return pa.table(columns)


def vectorised_s(points: Points, repeats: int = 5) -> float:
    """Seconds of the fastest of `repeats` predictions of the whole table."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        predict(points)
        seconds.append(time.process_time() - start)
    return min(seconds)


def one_at_a_time_s(points: Points, count: int) -> float:
    """Seconds for `count` layouts with one call each, as in a loop over objects."""
    (group,) = points.groups
    start = time.process_time()
    for row in range(count):
        f = group.features.take(slice(row, row + 1))
        memory = memory_of(group, f, group.start)
        step_of(group, f, group.start, memory.total / group.capacity_bytes)
    return time.process_time() - start


def from_memory(count: int) -> Points:
    """Points made from layout objects, as a study or `recommend` makes them."""
    shape = load_models()["llama2_7b"]
    layouts = [Layout(tp=2, dp=1 + n % 64, zero_stage=1, seq_length=4096) for n in range(count)]
    inputs = inputs_of_layouts(
        layouts, [shape] * count, models=["m"] * count, clusters=["h100-80gb"] * count
    )
    return points_from(inputs, {})


def main() -> None:
    """Print both rates and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layouts", type=int, default=200_000)
    count = parser.parse_args().layouts
    start = time.process_time()
    points = points_of(Table(table_of(count), "benchmark", np.arange(1, count + 1)))
    reading = time.process_time() - start
    start = time.process_time()
    from_memory(IN_MEMORY)
    direct = time.process_time() - start
    together = count / vectorised_s(points)
    alone = ONE_AT_A_TIME / one_at_a_time_s(points, ONE_AT_A_TIME)
    print(f"{count:,} layouts, one core")
    print(f"whole table at once     {together:12,.0f} layouts/s")
    print(f"one layout at a time    {alone:12,.0f} layouts/s  (the same formulas)")
    print(f"ratio                   {together / alone:12,.0f}")
    print(f"from layouts in memory  {IN_MEMORY / direct:12,.0f} points/s, the layouts made as well")
    print(f"making and checking the table took {reading:.2f} s more, {count / reading:,.0f} rows/s")


if __name__ == "__main__":
    main()
