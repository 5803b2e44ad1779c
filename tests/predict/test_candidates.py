"""Which layouts are searched, and that what experts chose is among the best of them."""

import numpy as np
import pytest

from scaling.cluster.hardware import Cluster, gpu_named
from scaling.layout.layout import refusals
from scaling.predict.advise.candidates import Search, candidates, pipeline_depths
from scaling.predict.cost.model import predict
from scaling.predict.read.inputs import inputs_of_layouts
from scaling.predict.read.points import points_from
from scaling.predict.read.stacks import stack_of
from tests.shipped import MODELS

LARGE = {
    name: Cluster(gpu=gpu, gpus_per_node=8, nodes=2048, node_link_bytes_per_s=link, source="test")
    for name, gpu, link in (("a100", "a100-80gb", 200e9), ("h100", "h100-80gb", 400e9))
} | {"gb200": Cluster(gpu="gb200-186gb", gpus_per_node=4, nodes=2048, source="test")}


def searched(shape, cluster, gpus, batch, seq_length, precision, framework):
    """Every layout with its prediction, and the order in which they are recommended."""
    search = Search(
        shape=shape, gpus=gpus, global_batch_size=batch, seq_length=seq_length,
        precision=precision, engine=None, gpus_per_node=LARGE[cluster].gpus_per_node,
        ring=stack_of(framework, gpu_named(LARGE[cluster].gpu)).ring,
    )  # fmt: skip
    layouts = list(candidates(search))
    n = len(layouts)
    inputs = inputs_of_layouts(
        layouts, [shape] * n, models=["m"] * n, clusters=[cluster] * n, framework=framework
    )
    prediction = predict(points_from(inputs, LARGE))
    order = np.argsort(np.where(prediction.fits, prediction.risk_adjusted_s, np.inf), kind="stable")
    return layouts, prediction, order[: int(prediction.fits.sum())]


# What people who train such models chose: arXiv 2205.05198 (A100), MLPerf Training v4.1 and v4.0,
# NVIDIA's DGX Cloud recipes, arXiv 2407.21783 (Llama 3 405B), Megatron-Bridge (DeepSeek-V3).
@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        (
            (MODELS["gpt_175b"], "a100", 1024, 1536, 2048, "bf16", "Megatron-LM"),
            {"tp": 8, "pp": 8, "micro_batch_size": 1},
        ),
        (
            (MODELS["gpt_175b"], "h100", 512, 2048, 2048, "fp8", "NeMo (MLPerf v4.1)"),
            {"tp": 4, "pp": 8, "virtual_stages": 6, "micro_batch_size": 1},
        ),
        (
            (MODELS["gpt_175b"], "h100", 10752, 2688, 2048, "fp8", "NeMo (MLPerf v4.1)"),
            {"tp": 4, "pp": 8, "virtual_stages": 6},
        ),
        (
            (MODELS["llama3_70b"], "h100", 64, 128, 8192, "bf16", "NeMo v25.02"),
            {"tp": 4, "pp": 4, "cp": 2, "virtual_stages": 5},
        ),
        (
            (MODELS["llama3_405b"], "h100", 16384, 2048, 8192, "bf16", "Megatron-Core"),
            {"tp": 8, "pp": 16},
        ),
        (
            (MODELS["deepseek_v3"], "gb200", 256, 4096, 4096, "mxfp8", "Megatron-Bridge"),
            {"tp": 1, "pp": 4, "ep": 64, "micro_batch_size": 1},
        ),
    ],
    ids=[
        "GPT-3 on 1,024 A100",
        "GPT-3 on 512 H100",
        "GPT-3 on 10,752 H100",
        "Llama 3 70B on 64 H100",
        "Llama 3 405B on 16,384 H100",
        "DeepSeek-V3 on 256 GB200",
    ],
)
def test_what_experts_chose_is_among_the_best(asked, chosen):
    layouts, prediction, order = searched(*asked)
    places = [
        place
        for place, row in enumerate(order.tolist())
        if all(getattr(layouts[row], name) == value for name, value in chosen.items())
    ]
    assert places[0] < 0.05 * len(order)
    times = prediction.step_time_s[order]
    assert times[places[0]] < 1.1 * times[0]


LLAMA_70B_IN_TORCH = Search(
    shape=MODELS["llama3_70b"], gpus=64, global_batch_size=256, seq_length=8192,
    precision="bf16", engine="torch", gpus_per_node=8,
)  # fmt: skip


def test_every_axis_that_the_torch_engine_has_is_searched():
    found = list(candidates(LLAMA_70B_IN_TORCH))
    for name, values in {
        "activation_checkpointing": {"none", "selective", "full"},
        "cp": {1, 2, 4},
        "zero_stage": {0, 1, 2, 3},
        "zero_shard_size": {None, 8, 4},
        "virtual_stages": {1, 2, 5},
        "pipeline_schedule": {"1f1b", "interleaved"},
    }.items():
        assert values <= {getattr(layout, name) for layout in found}, name
    assert all(next(refusals(MODELS["llama3_70b"], layout), None) is None for layout in found)


def test_a_shard_inside_a_node_is_as_large_in_a_pipeline_whose_stages_lie_on_other_nodes():
    found = {
        (layout.tp * layout.cp, layout.zero_shard_size)
        for layout in candidates(LLAMA_70B_IN_TORCH)
        if layout.pp > 1 and layout.zero_shard_size is not None
    }
    assert found == {(1, 8), (2, 4), (4, 2)}


def test_experts_are_dealt_over_ranks_that_divide_them():
    search = Search(
        shape=MODELS["qwen3_30b_a3b"], gpus=16, global_batch_size=512, seq_length=4096,
        precision="bf16", engine=None, gpus_per_node=8,
    )  # fmt: skip
    assert {layout.ep for layout in candidates(search)} == {1, 2, 4, 8, 16}


def test_pipelines_of_up_to_64_stages_are_searched():
    assert pipeline_depths(128) == [1, 2, 4, 8, 16, 32, 64]
    assert pipeline_depths(96)[-3:] == [24, 32, 48]
