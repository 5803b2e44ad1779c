"""DeepSpeed's configuration of a layout."""

from typing import Any

import pytest
import torch

from scaling.train.engines.deepspeed.config import bucket_sizes, deepspeed_config
from tests.points import TINY, tiny_point


def test_buckets_are_even_and_hold_at_most_what_a_rank_holds() -> None:
    sizes = {bucket_sizes(held)["reduce_bucket_size"] for held in (8_001, 8_002)}
    assert sizes == {8_002}
    assert bucket_sizes(10**9)["allgather_bucket_size"] == 500_000_000


def test_the_first_fp16_overflow_lowers_the_loss_scale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step that overflows is lost; DeepSpeed's own scale loses two before it is first lowered."""
    from deepspeed.runtime.fp16 import loss_scaler
    from deepspeed.runtime.precision_config import DeepSpeedFP16Config

    words = deepspeed_config(TINY, tiny_point(precision="fp16").layout)["fp16"]
    asked = DeepSpeedFP16Config(**words).dynamic_loss_scale_args()
    monkeypatch.setattr(loss_scaler.dist, "get_rank", lambda: 1)
    scaler = loss_scaler.CreateLossScaler(torch.half, 0.0, True, asked)
    assert scaler.cur_scale == 2**12
    scaler.update_scale(overflow=True)
    assert scaler.cur_scale == 2**11


def test_a_second_copy_of_the_parameters_is_shared_by_dp_and_cp_ranks() -> None:
    layout = tiny_point(dp=4, cp=2, zero_stage=3, zero_shard_size=2).layout
    asked = deepspeed_config(TINY, layout)["zero_optimization"]
    assert asked["zero_hpz_partition_size"] == 4
    assert asked["stage3_param_persistence_threshold"] == TINY.hidden_size


def test_a_layout_in_deepspeeds_words() -> None:
    layout = tiny_point(dp=2, zero_stage=2, gradient_accumulation_steps=2, precision="bf16").layout
    assert deepspeed_config(TINY, layout) == {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.0,
        "zero_optimization": {
            "stage": 2,
            "overlap_comm": True,
        },
        "bf16": {"enabled": True, "check_grad_overflow": False},
        "timers": {"throughput": {"enabled": False}},
        "steps_per_print": 1_000_000_000,
    }


@pytest.mark.parametrize(
    ("layout", "alone"),
    [
        ({"zero_stage": 1}, True),
        ({"tp": 2, "zero_stage": 2}, True),
        ({"zero_stage": 1, "optimizer_offload": "cpu"}, False),  # which needs the copies
        ({"dp": 2, "zero_stage": 1}, False),
        ({"cp": 2, "zero_stage": 2}, False),
    ],
    ids=str,
)
def test_a_single_replica_copies_no_gradients_into_buckets(
    layout: dict[str, Any], alone: bool
) -> None:
    point = tiny_point(**layout)
    zero = deepspeed_config(TINY, point.layout)["zero_optimization"]
    assert zero.get("contiguous_gradients", True) is not alone
