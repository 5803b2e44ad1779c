"""One device: our engine beside transformers' Llama or mT5, same shape and batch, in turns.

    python benchmarks/training_step.py                     # a tiny shape on the CPU
    python benchmarks/training_step.py --gpu h200-141gb --model llama2_7b --seq-length 2048 4096 \
        --micro-batch-size 1 2 4 --activation-checkpointing none selective --compile
    python benchmarks/training_step.py --gpu h200-141gb --model mt5_large --attention math

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
from typing import Any

from scaling.grid import Point
from scaling.hardware import gpu_named
from scaling.launch.environment import rank_environment
from scaling.layout import Layout, engine_refusals, refusals
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
            compile=asked.compile,
            precision="fp32" if asked.gpu == "cpu" else "bf16",
            zero_stage=1,
        )
        point = _point(asked.model, shape, layout, asked.gpu, asked.steps)
        refused = [*refusals(shape, layout), *engine_refusals(shape, layout)]
        if shape.family == "gpt" or refused:
            raise SystemExit(
                f"--model {asked.model}: {refused or 'only llama and t5 are compared'}"
            )
        ours = _alone(step_times_of_ours, point)
        theirs = _alone(step_times_of_transformers, point)
        print(json.dumps(_compared(point, ours, theirs) | {"compiled": asked.compile}))


def step_times_of_ours(point: Point) -> list[float]:
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


def step_times_of_transformers(point: Point) -> list[float]:
    """The same of what a user would write instead: a model, torch's AdamW, a loop."""
    if point.gpu == "cpu":
        os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    import torch

    from scaling.attention import DTYPES
    from scaling.train.config import BETAS, LEARNING_RATE, WEIGHT_DECAY
    from scaling.train.data import micro_batches
    from scaling.train.timing import CudaStopwatch, HostStopwatch, step_times_s

    shape, layout = point.shape, point.layout
    device = torch.device("cpu" if point.gpu == "cpu" else "cuda")
    if device.type == "cpu":
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    pairs = shape.family == "t5"
    model = (_mt5 if pairs else _llama)(shape, DTYPES[layout.precision]).to(device)
    if layout.activation_checkpointing != "none":  # it knows whole layers only
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    run: Callable[..., object] = torch.compile(model) if layout.compile else model
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True
    )

    def step(batch: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        ((ids, labels),) = batch
        # labels are one token ahead already; transformers would shift them once more
        inputs = (
            {"input_ids": ids[:, 0], "decoder_input_ids": ids[:, 1]}
            if pairs
            else {"input_ids": ids}
        )
        logits = run(**inputs).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    times = step_times_s(
        steps=point.warmup_steps + point.measured_steps,
        prepare=lambda index: micro_batches(
            layout,
            vocab_size=shape.vocab_size,
            seed=0,
            step=index,
            dp_rank=0,
            device=device,
            pairs=pairs,
        ),
        align=lambda: None,
        step=step,
        after=lambda _: None,
        stopwatch=CudaStopwatch() if device.type == "cuda" else HostStopwatch(),
    )
    return times[point.warmup_steps :]


def _llama(shape: ModelShape, dtype: Any) -> Any:
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


def _mt5(shape: ModelShape, dtype: Any) -> Any:
    from torch import nn
    from transformers import MT5Config, MT5ForConditionalGeneration

    config = MT5Config(
        vocab_size=shape.vocab_size,
        d_model=shape.hidden_size,
        d_kv=shape.head_dim,
        d_ff=shape.ffn_hidden_size,
        num_layers=shape.num_encoder_layers,
        num_decoder_layers=shape.num_layers,
        num_heads=shape.num_heads,
        dropout_rate=0.0,
        use_cache=False,
    )
    model = MT5ForConditionalGeneration._from_config(
        config, attn_implementation="sdpa", dtype=dtype
    )
    # its configuration ties the head whatever it is told; the released mT5 has one of its own
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    return model


def _alone(run: Callable[[Point], list[float]], point: Point) -> list[float]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as executor:
        return executor.submit(run, point).result()


def _compared(point: Point, ours: list[float], theirs: list[float]) -> dict[str, object]:
    layout = point.layout
    tokens = layout.micro_batch_size * point.shape.tokens_per_sequence(layout.seq_length)
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
    parser.add_argument("--compile", action="store_true", help="compile both")
    return parser.parse_args()


if __name__ == "__main__":
    main()
