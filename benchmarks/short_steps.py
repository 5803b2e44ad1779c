"""What short steps say of full ones, layout by layout: extended over measured, and seconds saved.

    python benchmarks/short_steps.py short_steps.jsonl     # 40 layouts on CPU ranks, two at most
    python benchmarks/short_steps.py short_steps.jsonl     # once more: what is missing of them

Each layout trains once, in fresh processes, and leaves a line in the file; an interrupted run goes
on with the next. Within one run short and full steps take turns, a full one after every round of
short ones, so that what a busy machine does slower falls on both. error is the extended step over
the median of the full ones, less 1; covered: that median lies in the 80 % interval. The median of
few full steps has noise of its own, which error and covered include: full_against_full is every
other full step over the rest, less 1, each the median of half as many steps. saved is what a point
of ten measured steps takes less, of warm-up and steps. load is what else wanted a core: where that
is more than one the lines say little.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import warnings
from pathlib import Path
from typing import Any

from scaling.launch.start.environment import rank_environment
from scaling.layout.engines import engine_refusals
from scaling.layout.layout import Layout, refusals
from scaling.layout.shapes import ModelShape
from scaling.record.extension import extended
from scaling.record.rank_files import RankFiles
from scaling.study.point import Point
from scaling.study.short_steps import accumulations, rounds

SHAPE = ModelShape(
    num_layers=4,
    hidden_size=128,
    num_heads=8,
    num_kv_heads=4,
    head_dim=16,
    ffn_hidden_size=256,
    vocab_size=512,
)

WARMUP, STEPS = 3, 10  # of a point as studies ask for it

# ZeRO 0 to 3 with dp, tp, cp, larger micro-batches and checkpointing, pipelines of every schedule.
DEEPSPEED = [
    {"zero_stage": stage, **more}
    for more in ({}, {"dp": 2}, {"tp": 2}, {"cp": 2}, {"dp": 2, "micro_batch_size": 2})
    for stage in range(4)
]
DEEPSPEED += [{"dp": 2, "zero_stage": 1, "activation_checkpointing": "full"}]
DEEPSPEED += [
    {"pp": 2, "zero_stage": stage, "pipeline_schedule": schedule}
    for schedule in ("1f1b", "dualpipev")
    for stage in (0, 1)
]
TORCH = [{"dp": 2, "zero_stage": stage} for stage in range(4)]
TORCH += [{"tp": 2, "zero_stage": 1}, {"tp": 2, "zero_stage": 3}, {"cp": 2, "zero_stage": 1}]
TORCH += [
    {"pp": 2, "zero_stage": 1, "pipeline_schedule": schedule, **more}
    for schedule, more in (
        ("1f1b", {}),
        ("1f1b", {"micro_batch_size": 2}),
        ("interleaved", {"virtual_stages": 2}),
        ("interleaved", {"virtual_stages": 2, "micro_batch_size": 2}),
        ("zero_bubble", {"virtual_stages": 2}),
        ("zbv", {}),
        ("dualpipev", {}),
        ("dualpipev", {"micro_batch_size": 2}),
    )
]


def layouts(full: int) -> list[Layout]:
    """The forty, of both engines; their full step has `full` micro-batches."""
    common = {
        "seq_length": 64,
        "precision": "fp32",
        "attention": "math",
        "gradient_accumulation_steps": full,
    }
    chosen = [Layout(**(common | one)) for one in DEEPSPEED]
    chosen += [Layout(**(common | one | {"engine": "torch"})) for one in TORCH]
    for layout in chosen:
        refused = [*refusals(SHAPE, layout), *engine_refusals(SHAPE, layout)]
        assert not refused, (layout.label, refused)
        assert accumulations(layout), layout.label
    return chosen


def main() -> None:
    """Measure what the file lacks, a line each, and sum all of it up."""
    asked = _asked()
    lines = asked.file.read_text().splitlines() if asked.file.exists() else []
    done = {(one["layout"], one["world_size"]): one for one in map(json.loads, lines)}
    for layout in layouts(asked.full):
        key = layout.label, layout.world_size
        if "error" not in done.get(key, {}):
            done[key] = compared(layout, asked.rounds)
            with asked.file.open("a") as file:
                file.write(json.dumps(done[key]) + "\n")
        print(json.dumps(done[key]), flush=True)
    print(json.dumps(summary(list(done.values())), indent=1))


def compared(layout: Layout, turns: int) -> dict[str, Any]:
    """One layout, trained on ranks of its own."""
    point = _point(layout)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as directory:
        context = multiprocessing.get_context("spawn")
        ranks = [
            context.Process(target=_rank, args=(point, directory, rank, turns))
            for rank in range(layout.world_size)
        ]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()
        left = [json.loads(path.read_text()) for path in Path(directory).glob("times*.json")]
    case = {"layout": layout.label, "world_size": layout.world_size, "load": load}
    if len(left) < layout.world_size:
        return case | {"failed": True}
    times = [max(steps) for steps in zip(*left, strict=True)]
    kinds = [*accumulations(layout), layout.gradient_accumulation_steps]
    full = times[len(kinds) - 1 :: len(kinds)]
    short = [seconds for place, seconds in enumerate(times) if (place + 1) % len(kinds)]
    extension = extended(kinds[:-1] * turns, short, kinds[-1])
    assert extension is not None
    measured = statistics.median(full)
    medians = [statistics.median(short[place :: len(kinds) - 1]) for place in range(len(kinds) - 1)]
    in_full = (WARMUP + STEPS) * measured
    in_short = WARMUP * medians[0] + rounds(STEPS) * sum(medians)
    return case | {
        "error": extension.step_time_s / measured - 1,
        "covered": extension.low_s <= measured <= extension.high_s,
        "half_width": extension.half_width,
        "linear": extension.linear,
        "measured_s": measured,
        "full_against_full": statistics.median(full[::2]) / statistics.median(full[1::2]) - 1,
        "seconds_in_full": in_full,
        "seconds_saved": in_full - in_short,
    }


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Over all layouts whose accumulations lie on a line; the others run in full."""
    ran = [one for one in lines if "error" in one]
    used = [one for one in ran if one["linear"]]
    if not used:
        return {"layouts": len(lines), "ran": len(ran)}
    errors = [abs(one["error"]) for one in used]
    floor = [abs(one["full_against_full"]) for one in ran]
    return {
        "layouts": len(lines),
        "ran": len(ran),
        "linear": len(used),
        "median_error": statistics.median(errors),
        "worst_error": max(errors),
        "covered": sum(one["covered"] for one in used) / len(used),
        "median_full_against_full": statistics.median(floor),
        "worst_full_against_full": max(floor),
        "seconds_in_full": sum(one["seconds_in_full"] for one in used),
        "seconds_saved": sum(one["seconds_saved"] for one in used),
        "median_load": statistics.median([one["load"] for one in lines]),
    }


def _rank(point: Point, directory: str, rank: int, turns: int) -> None:
    os.environ.update(rank_environment(point, os.environ))
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(point.world_size),
        MASTER_ADDR="127.0.0.1",
    )  # fmt: skip
    import torch
    import torch.distributed as dist

    from scaling.layout.engines import engine_module
    from scaling.train.data import micro_batches
    from scaling.train.engines.trainer import build
    from scaling.train.measure.timing import HostStopwatch, step_times_s
    from scaling.train.model.blueprint import Blueprint
    from scaling.train.parallel.groups import Groups
    from scaling.train.parallel.meeting import RankId, meet, part

    warnings.filterwarnings("ignore", category=FutureWarning)  # of torch to the engines, each step
    torch.set_num_threads(1)
    own = RankId(rank=rank, local_rank=rank, world_size=point.world_size, master="127.0.0.1")
    files, device = RankFiles(Path(directory)), torch.device("cpu")
    port = meet(own, files, device, timeout_s=300.0)
    engine_module(point.layout.engine, "engine").join(port)
    groups = Groups(rank, point.layout, timeout_s=300.0)
    trainer = build(
        Blueprint(
            shape=point.shape,
            layout=point.layout,
            tp=groups.tensor_parallel,
            cp=groups.context_parallel,
            seed=point.seed,
            gradient_clipping=0.0,
            device=device,
        ),
        groups,
    )
    kinds = [*accumulations(point.layout), point.layout.gradient_accumulation_steps]
    counts = [kinds[-1], *kinds, *(kinds * turns)]  # a full step and a round to warm up

    def prepare(step: int) -> Any:
        return micro_batches(
            point.layout,
            vocab_size=point.shape.vocab_size,
            seed=point.seed,
            step=step,
            dp_rank=groups.place.dp_rank,
            cp_rank=groups.place.cp_rank,
            device=device,
            count=counts[step],
        )

    times = step_times_s(
        steps=len(counts),
        prepare=prepare,
        align=dist.barrier,
        step=trainer.step,
        after=lambda _: None,
        stopwatch=HostStopwatch(),
    )
    Path(directory, f"times{rank}.json").write_text(json.dumps(times[1 + len(kinds) :]))
    part()
    os._exit(0)


def _point(layout: Layout) -> Point:
    return Point(
        study="benchmark",
        study_kind="strong",
        point_id="short-steps",
        repeat=0,
        model="small",
        shape=SHAPE,
        cluster="here",
        gpu="cpu",
        gpus_per_node=8,
        peak_flop_per_s=None,
        layout=layout,
        seed=0,
        warmup_steps=1,
        measured_steps=10,
        time_limit_s=600.0,
    )


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("file", type=Path, help="where the lines go")
    parser.add_argument("--full", type=int, default=24, help="micro-batches of the full step")
    parser.add_argument("--rounds", type=int, default=12)
    return parser.parse_args()


if __name__ == "__main__":
    main()
