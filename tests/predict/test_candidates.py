"""Which layouts are searched."""

from scaling.layout.layout import refusals
from scaling.predict.advise.candidates import Search, candidates, pipeline_depths
from tests.shipped import MODELS

LLAMA_70B_IN_TORCH = Search(
    model="llama3_70b", shape=MODELS["llama3_70b"], cluster="h100-80gb", clusters={}, gpus=64,
    global_batch_size=256, seq_length=8192, engine="torch",
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


def test_a_shard_inside_a_node_is_as_large_in_a_pipeline():
    found = {
        (layout.tp * layout.cp, layout.zero_shard_size)
        for layout in candidates(LLAMA_70B_IN_TORCH)
        if layout.pp > 1 and layout.zero_shard_size is not None
    }
    assert found == {(1, 8), (2, 4), (4, 2)}


def test_experts_are_dealt_over_ranks_that_divide_them():
    search = Search(
        model="qwen3", shape=MODELS["qwen3_30b_a3b"], cluster="h100-80gb", clusters={}, gpus=16,
        global_batch_size=512, engine="torch",
    )  # fmt: skip
    assert {layout.ep for layout in candidates(search)} == {1, 2, 4, 8, 16}


def test_pipelines_of_up_to_64_stages_are_searched():
    assert pipeline_depths(128) == [1, 2, 4, 8, 16, 32, 64]
    assert pipeline_depths(96)[-3:] == [24, 32, 48]
