"""Compare our engines with transformers' Llama (with DDP), same shape and batch.

    python benchmarks/training_step.py                     # a tiny shape on the CPU
    python benchmarks/training_step.py --model 25m 50m --engine deepspeed torch --ranks 2
    python benchmarks/training_step.py --gpu h200-141gb --model llama2_7b --seq-length 2048 4096 \
        --micro-batch-size 1 2 4 --gradient-accumulation-steps 1 8 --zero-stage 0 1 --compile \
        --fused-cross-entropy --beside liger

Every combination of options is a case and prints one line of JSON. In a case ours and theirs take
turns, so that a device that slows down over time slows both. Every turn is a process of its own, so
that neither uses the other's memory. A failure (out of memory, a missing kernel) ends its side of
the case, never the grid. With `--ranks` each turn has that many data-parallel ranks, one process
each, and the slowest one counts. `transformers_loop.py` describes the other side. mfu is
(6N + 12 L h s) tokens/s over the data sheet's peak.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from statistics import fmean, median
from typing import Any

import transformers_loop  # type: ignore[import-not-found]

from scaling.cluster.hardware import gpu_named
from scaling.launch.start.environment import rank_environment
from scaling.launch.start.local import rank_variables
from scaling.layout.axes import AXES
from scaling.layout.engines import engine_refusals
from scaling.layout.kernels import FUSED
from scaling.layout.layout import Layout, refusals
from scaling.layout.shapes import ModelShape, model_flops_per_token
from scaling.record.rank_files import RankFiles
from scaling.study.load import load_models
from scaling.study.point import Point

WARMUP_STEPS = 3
FLAGS = (*FUSED, "compile")
# The options that make up a case; every value is combined with every other.
GRID = {
    "seq_length": [128],
    "micro_batch_size": [2],
    "gradient_accumulation_steps": [1],
    "zero_stage": [1],
    "activation_checkpointing": ["none"],
    "engine": ["deepspeed"],
    "optimizer_precision": ["fp32"],  # ours
}
# Llamas with steps of seconds on a CPU, large enough that matmuls dominate.
SHAPES = {
    name: ModelShape(
        num_layers=8, hidden_size=width, num_heads=width // 64, num_kv_heads=width // 64,
        head_dim=64, ffn_hidden_size=8 * width // 3, vocab_size=16384,
    )
    for name, width in {"25m": 384, "50m": 576}.items()
}  # fmt: skip
Turn = dict[str, Any]  # outcome, message, and what was measured if the outcome is ok


def main() -> None:
    """Print a line for each case."""
    asked = _asked()
    if asked.ranks > 1 and asked.beside == "liger":
        raise SystemExit("--ranks 2 with --beside liger: its loss goes around the model DDP wraps")
    theirs = functools.partial(transformers_loop.trained, liger=asked.beside == "liger")
    for point in _points(asked):
        case = {"model": point.model, "gpu": point.gpu, "layout": point.layout.label}
        case |= {name: getattr(point.layout, name) for name in (*GRID, *FLAGS)}
        refused = [
            *refusals(point.shape, point.layout), *engine_refusals(point.shape, point.layout)
        ]  # fmt: skip
        turns: dict[Callable[..., Turn], list[Turn]] = {_ours: [], theirs: []}
        for run, done in [] if refused else [*turns.items()] * asked.turns:
            if not done or done[-1]["outcome"] == "ok":  # else it does not run again
                done.append(ranks_of(run, point))
        found = {"refused": refused} if refused else compared(point, *turns.values())
        print(json.dumps(case | {"beside": asked.beside} | found), flush=True)


def ranks_of(run: Callable[..., Turn], point: Point) -> Turn:
    """One turn, one process per rank: the first rank's result with the slowest times of all.

    The outcome of a failed rank wins.
    """
    context, count = multiprocessing.get_context("spawn"), point.layout.world_size
    with (
        tempfile.TemporaryDirectory() as directory,
        ProcessPoolExecutor(max_workers=count, mp_context=context) as executor,
    ):
        running = [
            executor.submit(_outcome_of, run, point, rank, Path(directory)) for rank in range(count)
        ]
        try:
            turns = [each.result() for each in running]
        except BrokenProcessPool:  # the kernel's out-of-memory killer, for one
            return {"outcome": "error", "message": "the process was ended from outside"}
    failed = [turn for turn in turns if turn["outcome"] != "ok"]
    if failed:
        return failed[0]
    each_step = zip(*(turn["step_times_s"] for turn in turns), strict=True)
    return turns[0] | {"step_times_s": [max(times) for times in each_step]}


def compared(point: Point, ours: list[Turn], theirs: list[Turn]) -> dict[str, object]:
    """The results of both sides, and our speed-up over all turns and in each turn."""
    own, other = _side(point, ours), _side(point, theirs)
    rates = own["tokens_per_s"], other["tokens_per_s"]
    pairs = zip(own["tokens_per_s_of_turns"], other["tokens_per_s_of_turns"], strict=False)
    return {
        **own,
        **{f"{name}_of_transformers": value for name, value in other.items()},
        "times_as_fast": None if None in rates else rates[0] / rates[1],
        "times_as_fast_of_turns": [fast / slow for fast, slow in pairs],
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _side(point: Point, turns: list[Turn]) -> dict[str, Any]:
    """The result of one side; without a rate if it did not finish all its turns."""
    tokens = point.layout.global_batch_size * point.shape.tokens_per_sequence(
        point.layout.seq_length
    )
    done = [turn for turn in turns if turn["outcome"] == "ok"]
    last, peak = turns[-1], point.peak_flop_per_s
    all_times = [seconds for turn in done for seconds in turn["step_times_s"]]
    rate = tokens / median(all_times) if last["outcome"] == "ok" else None
    flops = model_flops_per_token(point.shape, point.layout.seq_length)
    energy = [turn["energy_j"] for turn in done]
    steps = point.measured_steps * len(done)
    return {
        "outcome": last["outcome"],
        "message": last.get("message"),
        "tokens_per_s": rate,
        "tokens_per_s_of_turns": [tokens / median(turn["step_times_s"]) for turn in done],
        "mfu": None if rate is None or peak is None else flops * rate / peak,
        "peak_memory_bytes": max((turn["peak_memory_bytes"] for turn in done), default=None),
        "energy_j_of_a_step": sum(energy) / steps if energy and None not in energy else None,
        **{name: _mean([turn[name] for turn in done]) for name in transformers_loop.DRAWN},
    }


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _outcome_of(run: Callable[..., Turn], *given: object) -> Turn:
    try:
        turn = {"outcome": "ok", **run(*given)}
        import torch.distributed as dist  # after the environment of ranks is set

        if dist.is_initialized():
            dist.barrier()  # with gloo an early exit can abort other ranks
            dist.destroy_process_group()
        return turn
    except Exception as error:
        from scaling.train.failures import failure_of

        failure = failure_of(error)
        return {"outcome": failure.outcome, "message": failure.message}


def _ours(point: Point, rank: int, directory: Path) -> Turn:
    """Run one of our ranks."""
    os.environ.update(rank_environment(point, os.environ))
    os.environ.update(rank_variables(rank, point.layout.world_size))
    from scaling.cluster.node import rank_id_of
    from scaling.train.program import measure_point

    return dataclasses.asdict(measure_point(point, RankFiles(directory), rank_id_of(os.environ)))


def _points(asked: argparse.Namespace) -> Iterator[Point]:
    shapes = SHAPES | load_models(Path(__file__).parents[1] / "config" / "models.yaml")
    flags = {name: getattr(asked, name) for name in FLAGS}
    precision = "fp32" if asked.gpu == "cpu" else "bf16"
    for model in asked.model:
        if (shape := shapes[model]).family != "llama":
            raise SystemExit(f"--model {model}: only llama is compared, not {shape.family}")
        for values in itertools.product(*(getattr(asked, name) for name in GRID)):
            layout = Layout(
                **dict(zip(GRID, values, strict=True)), **flags, dp=asked.ranks,
                attention=asked.attention, precision=precision,
            )  # fmt: skip
            yield Point(
                study="benchmark", study_kind="strong", point_id="benchmark", repeat=0,
                model=model, shape=shape, cluster="here", gpu=asked.gpu,
                gpus_per_node=layout.world_size,
                peak_flop_per_s=gpu_named(asked.gpu).peaks.get(precision), layout=layout, seed=0,
                warmup_steps=WARMUP_STEPS, measured_steps=asked.steps, time_limit_s=3600.0,
            )  # fmt: skip


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", nargs="+", default=["tiny"])
    parser.add_argument("--gpu", default="cpu")
    parser.add_argument("--ranks", type=int, default=1, help="data-parallel, on this machine")
    for name, default in GRID.items():
        option = "--" + name.replace("_", "-")
        values = AXES[name].values if name in AXES else None
        parser.add_argument(
            option, type=type(default[0]), nargs="+", default=default, choices=values
        )
    for flag in FLAGS:
        both = "both, theirs with its loss" if flag == "compile" else "ours"
        parser.add_argument("--" + flag.replace("_", "-"), action="store_true", help=both)
    parser.add_argument("--beside", choices=["plain", "liger"], default="plain")
    parser.add_argument("--attention", default="flash2", help="ours; theirs is torch's choice")
    parser.add_argument("--steps", type=int, default=10, help="measured, of a turn")
    parser.add_argument("--turns", type=int, default=2, help="of each of the two")
    return parser.parse_args()


if __name__ == "__main__":
    main()
