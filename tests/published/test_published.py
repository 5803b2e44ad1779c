"""The published rows that are shipped: whence they are, and which is nearest to a point."""

import re

import pytest

from scaling.cluster.hardware import GPUS
from scaling.published.table import TABLE, nearest_rows, published_table


def test_every_row_says_where_it_is_from_and_under_which_licence():
    table = published_table()
    for name in ("source", "release", "licence", "gpu", "step_time_s", "model"):
        assert table[name].null_count == 0
    assert set(table["licence"].to_pylist()) == {"Apache-2.0", "MIT"}  # which allow shipping them
    assert not {"", None} & {*table["source"].to_pylist(), *table["release"].to_pylist()}
    assert set(table["gpu"].to_pylist()) <= set(GPUS)


def test_readme_counts_the_rows_of_each_table():
    readme = (TABLE.parent / "README.md").read_text()
    tables = published_table()["table"].to_pylist()
    for name in set(tables):
        assert f"| `{name}` | {tables.count(name)} |" in readme


def test_a_published_rate_follows_from_its_step():
    (row,) = [r for r in published_table().to_pylist() if r["source"].endswith("readme.md:14")]
    # 2,048 sequences of 4,096 tokens in 19.7 s on 256 GPUs
    assert row["tokens_per_s_per_gpu"] == pytest.approx(2048 * 4096 / 19.7 / 256)
    assert row["total_params"] == pytest.approx(235e9, rel=0.01)
    assert row["active_params"] == pytest.approx(22e9, rel=0.03)
    # 6 a parameter and 12 L (heads x head size) s, attention in full; the source's 245 count half
    flops = 6 * row["active_params"] + 12 * 94 * 64 * 128 * 4096
    achieved = row["tokens_per_s_per_gpu"] * flops
    assert row["model_flop_per_s_per_gpu"] == pytest.approx(achieved, rel=0.02)


def ask(**change):
    asked = {
        "gpu": "h100-80gb", "active_params": 70.6e9, "precision": "bf16", "world_size": 64,
        "experts": False,
    }  # fmt: skip
    return nearest_rows(**{**asked, **change})


def test_the_same_model_on_as_many_gpus_is_nearest():
    row = ask()[0]
    assert "70b" in row["model"].lower()
    assert (row["world_size"], row["precision"], row["gpu"]) == (64, "bf16", "h100-80gb")
    assert row["distance"] < 0.05
    assert row["source"] in row["sentence"]
    assert 100 < int(re.search(r"and (\d+) TFLOP/s a GPU", row["sentence"])[1]) < 989
    assert f"{row['tokens_per_s_per_gpu']:,.0f} tokens/s" in row["sentence"]


def test_nearer_rows_come_first_and_equally_near_ones_by_speed():
    several = ask()
    distances = [row["distance"] for row in several]
    assert distances == sorted(distances)
    same = [row["model_flop_per_s_per_gpu"] for row in several if row["distance"] == distances[0]]
    assert same == sorted(same, reverse=True)


def test_a_model_with_experts_is_no_measure_of_one_without():
    near = {"gpu": "gb200-186gb", "active_params": 6.7e9, "world_size": 72, "farthest": 8.0}
    assert "GPT OSS" in ask(**near, experts=True)[0]["model"]
    assert not any(re.search(r"\bep (?!1,)", row["layout"]) for row in ask(**near))
