"""A layout in DeepSpeed's words. No torch, no I/O."""

from typing import Any

from scaling.layout.layout import Layout
from scaling.layout.shapes import ModelShape
from scaling.train.engines.deepspeed.refusals import cuts_messages

_DEFAULT_BUCKET = 500_000_000  # DeepSpeed's own, in elements


def overlaps_reduction(layout: Layout) -> bool:
    """Whether ZeRO-1 or 2 reduces gradients while backward goes on, for a second bucket.

    ZeRO-1 can in the last micro-batch of a step, ZeRO-2 in each; ZeRO-3 does so by itself, a
    pipeline cannot, and a single replica has nothing to reduce.
    """
    return layout.zero_stage in (1, 2) and layout.pp == 1 and layout.dp * layout.cp > 1


def reduces_nothing(layout: Layout) -> bool:
    """Whether ZeRO-1 or 2 has a single replica: gradients need no buckets to be sent in."""
    return (
        layout.zero_stage in (1, 2)
        and layout.dp * layout.cp == 1
        and layout.optimizer_offload == "none"  # which needs the copies
    )


def buckets_of(held: int) -> dict[str, int]:
    """The buckets of `zero_optimization`, in elements, for a rank that holds so many parameters.

    DeepSpeed's default but never larger than what the rank holds, since they are allocated whole.
    It takes even sizes only.
    """
    elements = min(_DEFAULT_BUCKET, held + held % 2)
    return {"reduce_bucket_size": elements, "allgather_bucket_size": elements}


def hpz_ranks(layout: Layout) -> int | None:
    """Ranks that hold one second copy of ZeRO-3's parameters, None where there is none.

    A copy over all dp ranks is the first one. To ZeRO cp ranks are replicas too.
    """
    if layout.zero_stage < 3 or layout.zero_shard_size in (None, layout.dp):
        return None
    assert layout.zero_shard_size is not None
    return layout.zero_shard_size * layout.cp


def deepspeed_config(
    shape: ModelShape, layout: Layout, gradient_clipping: float = 0.0
) -> dict[str, Any]:
    """The dict that `deepspeed.initialize` takes for this layout.

    To DeepSpeed the cp ranks that share a sequence are replicas too, each with a batch of its own:
    the mean of their gradients is the right one, since every rank's loss is the mean over equally
    many tokens. Its own notion of sequence parallelism sums gradients in ZeRO 0 to 2 and averages
    them in 3, and with `sequence_parallel_size` in this dict 0 to 2 would not reduce them at all.
    A second copy of ZeRO-3's parameters is one of matrices, in a small model too: there
    DeepSpeed would keep every weight below 1e5 elements on every rank. Clipping is said
    even where it is off: DeepSpeed's default is a norm of 1.0. The throughput timer is off because
    it drains the device twice a micro-batch. Everything not named here is DeepSpeed's default, but
    for the buckets (`buckets_of`).
    """
    config: dict[str, Any] = {
        "train_batch_size": layout.global_batch_size * layout.cp,
        "train_micro_batch_size_per_gpu": layout.micro_batch_size,
        "gradient_accumulation_steps": layout.gradient_accumulation_steps,
        "zero_optimization": {"stage": layout.zero_stage},
        "gradient_clipping": gradient_clipping,
        "steps_per_print": 1_000_000_000,  # it prints to stdout; never is not among its choices
        "timers": {"throughput": {"enabled": False}},
    }
    if overlaps_reduction(layout):
        config["zero_optimization"]["overlap_comm"] = True
    if reduces_nothing(layout):
        config["zero_optimization"]["contiguous_gradients"] = False
    hpz = hpz_ranks(layout)
    if hpz is not None:
        config["zero_optimization"] |= {
            "zero_hpz_partition_size": hpz,
            "stage3_param_persistence_threshold": shape.hidden_size,
        }
    if layout.optimizer_offload == "cpu":
        # torch's fused AdamW runs on the host too; DeepSpeed's own is compiled at the first use
        config["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
        config["zero_force_ds_cpu_optimizer"] = False
    if layout.model_precision in ("bf16", "fp16"):
        config[layout.model_precision] = {"enabled": True}
    if layout.model_precision == "bf16":
        # It reads all gradients twice and waits for the answer; bf16 has the range of fp32, and a
        # loss that is not finite says the same. ZeRO-0 and ZeRO-3 look all the same, asked or not.
        config["bf16"]["check_grad_overflow"] = False
    if layout.optimizer_precision == "bf16":
        config["bf16"] |= {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    if layout.pp > 1:
        cut = cuts_messages(shape, layout)
        config["pipeline"] = {"pipe_partitioned": cut, "grad_partitioned": cut}
    return config
