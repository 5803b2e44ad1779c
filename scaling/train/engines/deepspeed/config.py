"""The DeepSpeed configuration of a layout. No torch, no I/O."""

from typing import Any

from scaling.layout.layout import Layout
from scaling.layout.shapes import ModelShape
from scaling.train.engines.deepspeed.refusals import partitions_activations

_DEFAULT_BUCKET = 500_000_000  # DeepSpeed's own, in elements


def overlaps_reduction(layout: Layout) -> bool:
    """Whether ZeRO-1 or 2 reduces gradients while backward runs, at the cost of a second bucket.

    ZeRO-1 can do so in the last micro-batch of a step and ZeRO-2 in each. ZeRO-3 always does, a
    pipeline cannot, and a single replica has nothing to reduce.
    """
    return layout.zero_stage in (1, 2) and layout.pp == 1 and layout.dp * layout.cp > 1


def skips_gradient_reduction(layout: Layout) -> bool:
    """Whether ZeRO-1 or 2 has a single replica, so that gradients need no buckets."""
    return (
        layout.zero_stage in (1, 2)
        and layout.dp * layout.cp == 1
        and layout.optimizer_offload == "none"  # offloading needs the buckets' copies
    )


def bucket_sizes(parameters: int) -> dict[str, int]:
    """Bucket sizes for `zero_optimization`, in elements, on a rank with this many parameters.

    DeepSpeed's default, but no more than the rank's parameters since buckets are allocated whole.
    DeepSpeed accepts only even sizes.
    """
    elements = min(_DEFAULT_BUCKET, parameters + parameters % 2)
    return {"reduce_bucket_size": elements, "allgather_bucket_size": elements}


def hpz_partition_size(layout: Layout) -> int | None:
    """Ranks that share one secondary copy of ZeRO-3's parameters (hpZ); None without such copies.

    A copy over all dp ranks would be the primary one. ZeRO treats cp ranks as replicas too.
    """
    if layout.zero_stage < 3 or layout.zero_shard_size in (None, layout.dp):
        return None
    assert layout.zero_shard_size is not None
    return layout.zero_shard_size * layout.cp


def deepspeed_config(
    shape: ModelShape, layout: Layout, gradient_clipping: float = 0.0
) -> dict[str, Any]:
    """The dict that `deepspeed.initialize` takes for this layout.

    Anything not set here is DeepSpeed's default, except the buckets (`bucket_sizes`). Choices that
    need a reason:

    - The cp ranks that share a sequence count as replicas with a batch of their own. The mean of
      their gradients is right, since each rank's loss is a mean over equally many tokens.
      DeepSpeed's own sequence parallelism sums gradients in ZeRO 0 to 2 and averages them in 3.
      With `sequence_parallel_size` in this dict ZeRO 0 to 2 would not reduce them at all.
    - The secondary copy of ZeRO-3's parameters (hpZ) holds all matrices. By default DeepSpeed keeps
      every weight below 1e5 elements whole on every rank, in a small model all of them.
    - Clipping is set even where it is off, since DeepSpeed's default is a norm of 1.0. The
      throughput timer is off because it drains the device twice a micro-batch.
    """
    config: dict[str, Any] = {
        "train_batch_size": layout.global_batch_size * layout.cp,
        "train_micro_batch_size_per_gpu": layout.micro_batch_size,
        "gradient_accumulation_steps": layout.gradient_accumulation_steps,
        "zero_optimization": {"stage": layout.zero_stage},
        "gradient_clipping": gradient_clipping,
        "steps_per_print": 1_000_000_000,  # prints to stdout, and cannot be turned off
        "timers": {"throughput": {"enabled": False}},
    }
    if overlaps_reduction(layout):
        config["zero_optimization"]["overlap_comm"] = True
    if skips_gradient_reduction(layout):
        config["zero_optimization"]["contiguous_gradients"] = False
    hpz = hpz_partition_size(layout)
    if hpz is not None:
        config["zero_optimization"] |= {
            "zero_hpz_partition_size": hpz,
            "stage3_param_persistence_threshold": shape.hidden_size,
        }
    if layout.optimizer_offload == "cpu":
        # torch's fused AdamW runs on the host too; DeepSpeed's own is compiled at first use
        config["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
        config["zero_force_ds_cpu_optimizer"] = False
    if layout.model_precision in ("bf16", "fp16"):
        config[layout.model_precision] = {"enabled": True}
    if layout.model_precision == "bf16":
        # The check reads all gradients twice and waits for the result. bf16 has the range of fp32,
        # and a loss that is not finite shows the same. ZeRO-0 and ZeRO-3 check regardless.
        config["bf16"]["check_grad_overflow"] = False
    if layout.model_precision == "fp16":
        # A step whose gradients overflow updates nothing, and is not measured. The first loss scale
        # of 2^16 overflows in a model's first steps until it is lowered; 2^12 leaves 16 times as
        # much room, and takes as long.
        config["fp16"] |= {"initial_scale_power": 12, "hysteresis": 1}
    if layout.optimizer_precision == "bf16":
        config["bf16"] |= {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    if layout.pp > 1:
        partitioned = partitions_activations(layout)
        config["pipeline"] = {"pipe_partitioned": partitioned, "grad_partitioned": partitioned}
    return config
