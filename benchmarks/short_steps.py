"""What short steps say of full ones, layout by layout: extended over measured, and seconds saved.

    python benchmarks/short_steps.py                  # 40 layouts on CPU ranks, a line each
    python benchmarks/short_steps.py --only 0 8       # the first eight
    python benchmarks/short_steps.py --summary lines.jsonl

Each layout trains once. Within one run short and full steps take turns, a full one after every
round of short ones, so that what a busy machine does slower falls on both. error is the extended
step over the median of the full ones, less 1; covered: that median lies in the 80 % interval. The
median of few full steps has noise of its own, which error and covered include. load is what else
wanted a core: where it is more than a core, `--clock process` counts the rank's own processor time
instead, which says nothing of waiting and so is only good for one rank (`--one-rank`).
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scaling.launch.start.environment import rank_environment
from scaling.layout.axes import AXES
from scaling.layout.engines import engine_refusals
from scaling.layout.layout import Layout, refusals
from scaling.layout.shapes import ModelShape
from scaling.record.extension import extended
from scaling.record.rank_files import RankFiles
from scaling.study.point import Point
from scaling.study.short_steps import accumulations

SHAPE = ModelShape(
    num_layers=4,
    hidden_size=128,
    num_heads=8,
    num_kv_heads=4,
    head_dim=16,
    ffn_hidden_size=256,
    vocab_size=512,
)


def layouts(full: int) -> Iterator[Layout]:
    """ZeRO 0 to 3 with and without tp, cp, checkpointing, and pipelines of every schedule."""
    common = {"seq_length": 64, "precision": "fp32", "attention": "math"}
    schedules = [name for name in AXES["pipeline_schedule"].values or () if name != "1f1b"]
    chosen: list[dict[str, Any]] = [
        {"zero_stage": stage, **ranks, **more}
        for ranks in ({}, {"dp": 2}, {"tp": 2}, {"cp": 2})
        for stage in range(4)
        for more in ({}, {"micro_batch_size": 2})
    ]
    chosen += [{"zero_stage": s, "activation_checkpointing": "full"} for s in (0, 1, 3)]
    for pipeline in ("1f1b", *schedules):
        base = {"pp": 2, "pipeline_schedule": pipeline}
        if pipeline != "1f1b" and pipeline != "dualpipev" and "virtual_stages" in AXES:
            base |= {"engine": "torch"} | (
                {"virtual_stages": 2} if pipeline != "zero_bubble" else {}
            )
        chosen += [base | {"zero_stage": stage} for stage in (0, 1)]
        chosen += [base | {"zero_stage": 1, "micro_batch_size": 2}]
    for one in chosen:
        layout = Layout(**(common | {"gradient_accumulation_steps": full} | one))
        refused = [*refusals(SHAPE, layout), *engine_refusals(SHAPE, layout)]
        if not refused and accumulations(layout):
            yield layout


def main() -> None:
    asked = _asked()
    if asked.summary:
        lines = asked.summary.read_text().splitlines()
        print(json.dumps(summary([json.loads(line) for line in lines])))
        return
    every = [each for each in layouts(asked.full) if each.world_size == 1 or not asked.one_rank]
    first, last = asked.only or (0, len(every))
    found = []
    for layout in every[first:last]:
        found.append(compared(layout, asked.rounds, own_time=asked.clock == "process"))
        print(json.dumps(found[-1]), flush=True)
    print(json.dumps(summary(found)))


def compared(layout: Layout, rounds: int, *, own_time: bool) -> dict[str, Any]:
    """One layout, trained on ranks of its own."""
    point = _point(layout)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as directory:
        context = multiprocessing.get_context("spawn")
        ranks = [
            context.Process(target=_rank, args=(point, directory, rank, rounds, own_time))
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
    found = extended(kinds[:-1] * rounds, short, kinds[-1])
    assert found is not None
    measured = statistics.median(full)
    return case | {
        "error": found.step_time_s / measured - 1,
        "covered": found.low_s <= measured <= found.high_s,
        "half_width": found.half_width,
        "linear": found.linear,
        "measured_s": measured,
        "spread_of_full": statistics.pstdev(full) / measured,
        "seconds_of_full": sum(full),
        "seconds_of_short": sum(short),
    }


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Over all layouts whose accumulations lie on a line."""
    ran = [one for one in found if "error" in one]
    used = [one for one in ran if one["linear"]]
    errors = sorted(abs(one["error"]) for one in used)
    return {
        "layouts": len(found),
        "ran": len(ran),
        "linear": len(used),
        "median_error": statistics.median(errors) if errors else None,
        "worst_error": errors[-1] if errors else None,
        "covered": sum(one["covered"] for one in used) / len(used) if used else None,
        "median_spread_of_full": statistics.median([one["spread_of_full"] for one in ran])
        if ran
        else None,
        "load": statistics.median([one["load"] for one in found]) if found else None,
    }


def _rank(point: Point, directory: str, rank: int, rounds: int, own_time: bool) -> None:
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
    counts = [kinds[-1], *kinds, *(kinds * rounds)]  # a full step and a round to warm up

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
        stopwatch=HostStopwatch(clock=time.process_time if own_time else time.perf_counter),
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
    parser.add_argument("--full", type=int, default=24, help="micro-batches of the full step")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--clock", choices=["wall", "process"], default="wall")
    parser.add_argument("--one-rank", action="store_true", help="layouts of one rank only")
    parser.add_argument("--only", type=int, nargs=2, metavar=("FIRST", "LAST"))
    parser.add_argument("--summary", type=Path, help="of lines that were printed before")
    return parser.parse_args()


if __name__ == "__main__":
    main()
