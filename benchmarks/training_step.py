"""One device: our engine beside transformers' LlamaForCausalLM, same shape and batch, in turns.

    python benchmarks/training_step.py                     # a tiny shape on the CPU
    python benchmarks/training_step.py --gpu h200-141gb --model llama2_7b --seq-length 2048 4096 \
        --micro-batch-size 1 2 4 --activation-checkpointing none selective --compile

Each of the two runs in a process of its own, so that neither finds the other's memory. What favours
transformers: it trains and keeps Adam's moments in the weights' precision, where DeepSpeed keeps
fp32 masters and moments. On a tiny shape it is mostly the hosts' share of a step that is compared.
mfu is (6N + 12 L h s) tokens/s over the data sheet's peak.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median

from scaling.grid import Point
from scaling.hardware import gpu_named
from scaling.launch.environment import rank_environment
from scaling.layout import Layout
from scaling.rank_files import RankFiles
from scaling.shapes import ModelShape, model_flops_per_token
from scaling.study import load_models

WARMUP_STEPS = 3


def main() -> None:
    asked = _asked()
    shape = load_models(Path(__file__).parents[1] / "config" / "models.yaml")[asked.model]
    combinations = itertools.product(
        asked.seq_length, asked.micro_batch_size, asked.activation_checkpointing
    )
    for seq_length, micro_batch_size, checkpointing in combinations:
        layout = Layout(
            seq_length=seq_length,
            micro_batch_size=micro_batch_size,
            activation_checkpointing=checkpointing,
            attention=asked.attention,
            precision="fp32" if asked.gpu == "cpu" else "bf16",
            zero_stage=1,
        )
        point = _point(asked.model, shape, layout, asked.gpu, asked.steps)
        ours = _alone(step_times_of_ours, point, False)
        theirs = _alone(step_times_of_transformers, point, asked.compile)
        print(json.dumps(_compared(point, ours, theirs) | {"compiled": asked.compile}))


def step_times_of_ours(point: Point, compiled: bool) -> list[float]:
    """Seconds of every measured step of a rank of ours that is alone."""
    os.environ.update(rank_environment(point, os.environ))
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")
    from scaling.meeting import Seat, part
    from scaling.train.program import measured

    seat = Seat(rank=0, local_rank=0, world_size=1, master="127.0.0.1")
    with tempfile.TemporaryDirectory() as directory:
        times = measured(point, RankFiles(Path(directory)), seat).step_times_s
    part()
    return times


def step_times_of_transformers(point: Point, compiled: bool) -> list[float]:
    """The same of what a user would write instead: a model, torch's AdamW, a loop."""
    if point.gpu == "cpu":
        os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from scaling.train.config import BETAS, LEARNING_RATE, WEIGHT_DECAY
    from scaling.train.data import micro_batches
    from scaling.train.kernels import DTYPES
    from scaling.train.timing import CudaStopwatch, HostStopwatch, step_times_s

    shape, layout = point.shape, point.layout
    device = torch.device("cpu" if point.gpu == "cpu" else "cuda")
    if device.type == "cpu":
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    model = LlamaForCausalLM._from_config(
        LlamaConfig(
            vocab_size=shape.vocab_size,
            hidden_size=shape.hidden_size,
            intermediate_size=shape.ffn_hidden_size,
            num_hidden_layers=shape.num_layers,
            num_attention_heads=shape.num_heads,
            num_key_value_heads=shape.num_kv_heads,
            tie_word_embeddings=shape.tied_embeddings,
            use_cache=False,
        ),
        attn_implementation="sdpa",
        dtype=DTYPES[layout.precision],
    ).to(device)
    if layout.activation_checkpointing != "none":  # it knows whole layers only
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    run: Callable[..., object] = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True
    )

    def step(batch: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        ((ids, labels),) = batch
        # labels are one token ahead already; transformers would shift them once more
        logits = run(input_ids=ids).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    times = step_times_s(
        steps=point.warmup_steps + point.measured_steps,
        prepare=lambda index: micro_batches(
            layout, vocab_size=shape.vocab_size, seed=0, step=index, dp_rank=0, device=device
        ),
        align=lambda: None,
        step=step,
        after=lambda _: None,
        stopwatch=CudaStopwatch() if device.type == "cuda" else HostStopwatch(),
    )
    return times[point.warmup_steps :]


def _alone(run: Callable[[Point, bool], list[float]], point: Point, compiled: bool) -> list[float]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as executor:
        return executor.submit(run, point, compiled).result()


def _compared(point: Point, ours: list[float], theirs: list[float]) -> dict[str, object]:
    layout = point.layout
    tokens = layout.micro_batch_size * layout.seq_length
    flops = model_flops_per_token(point.shape, layout.seq_length) * tokens
    peak = point.peak_flop_per_s
    return {
        "model": point.model,
        "layout": layout.label,
        "seq_length": layout.seq_length,
        "gpu": point.gpu,
        "tokens_per_s": tokens / median(ours),
        "tokens_per_s_of_transformers": tokens / median(theirs),
        "times_as_fast": median(theirs) / median(ours),
        "mfu": None if peak is None else flops / median(ours) / peak,
        "mfu_of_transformers": None if peak is None else flops / median(theirs) / peak,
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _point(model: str, shape: ModelShape, layout: Layout, gpu: str, steps: int) -> Point:
    return Point(
        study="benchmark",
        study_kind="strong",
        point_id="benchmark",
        repeat=0,
        model=model,
        shape=shape,
        cluster="here",
        gpu=gpu,
        gpus_per_node=1,
        peak_flop_per_s=gpu_named(gpu).peak(layout.precision),
        layout=layout,
        seed=0,
        warmup_steps=WARMUP_STEPS,
        measured_steps=steps,
        time_limit_s=3600.0,
    )


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--gpu", default="cpu")
    parser.add_argument("--seq-length", type=int, nargs="+", default=[128])
    parser.add_argument("--micro-batch-size", type=int, nargs="+", default=[2])
    parser.add_argument("--activation-checkpointing", nargs="+", default=["none"])
    parser.add_argument("--attention", default="flash2")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--compile", action="store_true", help="compile transformers' model")
    return parser.parse_args()


if __name__ == "__main__":
    main()
