"""The training loop that a user would write: a transformers model with torch's DDP and AdamW.

Adam's moments have the weights' precision, where DeepSpeed by default keeps fp32 master weights and
moments. With Liger, norms, rotation and feed-forward are its kernels, and head and loss are one
kernel. If compiled, the loss is compiled with the model.
"""

import contextlib
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scaling.layout.shapes import ModelShape
from scaling.record.rank_files import RankFiles
from scaling.study.point import Point

DRAWN = ("mean_power_w", "clock_hz", "throttled_share")


def trained(point: Point, rank: int, directory: Path, *, liger: bool) -> dict[str, Any]:
    """Seconds of every measured step of a rank, peak memory, and what its device drew.

    Its ranks meet in the directory.
    """
    if point.gpu == "cpu":
        os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    import torch

    from scaling.cluster.node import RankId
    from scaling.train.data import Feed
    from scaling.train.engines.trainer import BETAS, LEARNING_RATE, WEIGHT_DECAY
    from scaling.train.kernels.attention import DTYPES
    from scaling.train.measure.peak_memory import peak_memory
    from scaling.train.measure.power import PowerLog, meter_of
    from scaling.train.parallel.groups import Place
    from scaling.train.parallel.rendezvous import rendezvous
    from scaling.train.stepping import Stopwatch

    shape, layout = point.shape, point.layout
    device = torch.device("cpu" if point.gpu == "cpu" else f"cuda:{rank}")
    if device.type == "cpu":
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    else:
        torch.cuda.set_device(device)  # stopwatch and barriers use the current device
    model = _llama(shape, DTYPES[layout.precision], liger).to(device)
    if layout.activation_checkpointing != "none":  # it knows whole layers only
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    ranks = layout.world_size
    if ranks > 1:
        own = RankId(rank=rank, local_rank=rank, world_size=ranks, master="127.0.0.1")
        rendezvous(own, RankFiles(directory), device, timeout_s=600.0)
        model = torch.nn.parallel.DistributedDataParallel(model)
    loss_function: Callable[..., Any] = _loss_of(model, liger=liger)
    if layout.compile:
        loss_function = torch.compile(loss_function)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True
    )
    meter = meter_of(device)
    power = None if meter is None else PowerLog(meter, clock=time.monotonic)
    steps = point.warmup_steps + point.measured_steps
    counts = [layout.gradient_accumulation_steps] * steps
    feed = Feed(point, Place.of(rank, layout), counts, first=0, device=device)

    def step(batches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        for index, (ids, labels) in enumerate(batches, start=1):
            waits = ranks > 1 and index < len(batches)
            with model.no_sync() if waits else contextlib.nullcontext():
                (loss_function(ids, labels) / len(batches)).backward()
        optimizer.step()
        optimizer.zero_grad()

    stopwatch = Stopwatch(device)
    times = []
    for index in range(steps):
        batches = feed(index)
        if power is not None and index == point.warmup_steps:
            power.start()
        if ranks > 1:
            torch.distributed.barrier()
        times.append(stopwatch.seconds_of(functools.partial(step, batches)))
    drawn = {} if power is None else power.stop()
    return {
        "step_times_s": times[point.warmup_steps :],
        "peak_memory_bytes": peak_memory(device)["peak_memory_bytes"],
        **{name: drawn.get(name) for name in ("energy_j", *DRAWN)},
    }


def _loss_of(model: Any, *, liger: bool) -> Callable[..., Any]:
    """Ids and labels to the mean loss.

    Labels are one token ahead already: transformers' own loss would shift them once more.
    """
    from torch.nn.functional import cross_entropy

    from scaling.train.kernels.fused import linear_cross_entropy

    def of_tokens(ids: Any, labels: Any) -> Any:
        logits = model(input_ids=ids).logits
        return cross_entropy(logits.float().flatten(0, 1), labels.flatten())

    def by_liger(ids: Any, labels: Any) -> Any:
        hidden = model.model(input_ids=ids).last_hidden_state
        return linear_cross_entropy(hidden, model.lm_head.weight, labels)

    return by_liger if liger else of_tokens


def _llama(shape: ModelShape, dtype: Any, liger: bool) -> Any:
    if liger:
        from liger_kernel.transformers import apply_liger_kernel_to_llama

        apply_liger_kernel_to_llama(
            rope=True, rms_norm=True, swiglu=True, cross_entropy=False,
            fused_linear_cross_entropy=False,
        )  # fmt: skip
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.ffn_hidden_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        tie_word_embeddings=shape.tied_embeddings,
        use_cache=False,
    )
    return LlamaForCausalLM._from_config(config, attn_implementation="sdpa", dtype=dtype)
