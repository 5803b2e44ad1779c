"""Step times extended from short steps, compared with measured full steps, for each layout.

    python benchmarks/short_steps.py short_steps.jsonl     # 40 layouts on CPU ranks, two at most
    python benchmarks/short_steps.py short_steps.jsonl     # again: measures what is missing

Each visit to a layout trains it in a process group of its own and appends a line to the file; an
interrupted run continues with the next layout. --visits goes over all layouts several times,
because noise that lasts for minutes is the same in all steps of one visit. A round is one full step
and one of each short kind in random order, so that a busy machine or a drift slows short and full
steps alike. As many rounds run as fit into --seconds. Each rank has a core of its own and, where
permitted, priority (nice -15). Columns:

error    extended step over the median full step, less 1: from all rounds of a visit; the mean of
         the visits.
floor    likewise, median full step of every other round over that of the remaining rounds, less 1:
         the error of full steps themselves, with half of the steps in each median.
point    median absolute error with only the rounds of a point of ten steps.
covered  share of such points whose 80 % interval contains the median full step of their visit. The
         summary adds the share that right intervals would have: less than 80 %, because the median
         of the full steps is uncertain too.
saved    share of the seconds that such a point takes in full, warm-up included.
stolen   share of the cores' time that the hypervisor gave to others.
load     load average before it began.
"""

import argparse
import contextlib
import functools
import itertools
import json
import math
import multiprocessing
import os
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from scaling.analyse.catalogue import Z80, Z95
from scaling.launch.start.environment import rank_environment
from scaling.layout.engines import engine_refusals
from scaling.layout.layout import Layout, refusals
from scaling.layout.shapes import ModelShape
from scaling.record.extension import Extension, estimate_full_step
from scaling.record.interval import median_interval
from scaling.record.rank_files import RankFiles
from scaling.study.point import Point
from scaling.study.short_steps import short_step_rounds, short_step_sizes, shuffled_rounds

SHAPE = ModelShape(
    num_layers=4,
    hidden_size=384,
    num_heads=8,
    num_kv_heads=4,
    head_dim=48,
    ffn_hidden_size=1024,
    vocab_size=512,
)

WARMUP, STEPS = 3, 10  # of a point as studies ask for it
FEWEST_ROUNDS, MOST_ROUNDS = 5, 400
IMPORTED = [
    f"scaling.train.engines.{engine}.{part}"
    for engine in ("deepspeed", "torch")
    for part in ("engine", "pipeline")
]

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
    """The forty layouts, of both engines, whose full step has `full` micro-batches."""
    common = {
        "seq_length": 128,
        "precision": "fp32",
        "attention": "math",
        "gradient_accumulation_steps": full,
    }
    chosen = [Layout(**(common | one)) for one in DEEPSPEED]
    chosen += [Layout(**(common | one | {"engine": "torch"})) for one in TORCH]
    for layout in chosen:
        refused = [*refusals(SHAPE, layout), *engine_refusals(SHAPE, layout)]
        assert not refused, (layout.label, refused)
        assert short_step_sizes(layout), layout.label
    return chosen


def main() -> None:
    """Measure the layouts that the file lacks, and print the file as a table."""
    asked = _asked()
    lines = asked.file.read_text().splitlines() if asked.file.exists() else []
    done: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for line in map(json.loads, lines):
        if "times" in line:
            done.setdefault((line["layout"], line["world_size"]), []).append(line)
    every = layouts(asked.full)
    # imported once, in the ranks' environment, in a process that only forks ranks
    os.environ.update(rank_environment(_point(every[0]), os.environ))
    multiprocessing.set_forkserver_preload(IMPORTED)
    print(HEADER, flush=True)
    end = time.monotonic() + asked.at_most
    for visit, layout in itertools.product(range(1, asked.visits + 1), every):
        visits = done.setdefault((layout.label, layout.world_size), [])
        if len(visits) < visit and time.monotonic() < end:
            line = measured(layout, asked.seconds)
            with asked.file.open("a") as file:
                file.write(json.dumps(line) + "\n")
            if "times" not in line:
                print(f"{layout.label:58} {layout.world_size:5} failed", flush=True)
                continue
            visits.append(line)
        if len(visits) == visit:
            print(table_line(visits), flush=True)
    print(summary([judged(visits) for visits in done.values() if visits]))


def measured(layout: Layout, seconds: float) -> dict[str, Any]:
    """Train one layout on its own ranks; the slowest rank's seconds of each step."""
    case = {"layout": layout.label, "world_size": layout.world_size, "load": os.getloadavg()[0]}
    before = _stolen()
    with tempfile.TemporaryDirectory() as directory:
        context = multiprocessing.get_context("forkserver")
        ranks = [
            context.Process(target=_rank, args=(_point(layout), directory, rank, seconds))
            for rank in range(layout.world_size)
        ]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()
        left = [json.loads(path.read_text()) for path in Path(directory).glob("times*.json")]
    if len(left) < layout.world_size:
        return case
    stolen, of = (now - then for now, then in zip(_stolen(), before, strict=True))
    case["stolen"] = stolen / max(1, of)
    times = [max(steps) for steps in zip(*left, strict=True)]
    return case | {"counts": _turns(layout)[: len(times)], "times": times}


def _stolen() -> tuple[int, int]:
    """Stolen and total time of all cores since boot, in ticks."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return ticks[7], sum(ticks)


def judged(visits: list[dict[str, Any]]) -> dict[str, Any]:
    """The columns of a layout, from the step times of its visits."""
    each = [_judged(line) for line in visits]
    means = ("error", "floor", "step_time_s", "seconds_in_full", "seconds_saved", "load", "stolen")
    lists = ("points", "covered", "expected")
    return {
        **{key: statistics.fmean(one[key] for one in each) for key in means},
        **{key: [value for one in each for value in one[key]] for key in lists},
        "rounds": sum(one["rounds"] for one in each),
        "linear": all(one["linear"] for one in each),
    }


def _judged(line: dict[str, Any]) -> dict[str, Any]:
    counts, times, whole = line["counts"], line["times"], max(line["counts"])
    full = [seconds for count, seconds in zip(counts, times, strict=True) if count == whole]
    steps = [one for one in zip(counts, times, strict=True) if one[0] != whole]
    kinds = len(set(counts)) - 1

    def of(some: list[tuple[int, float]]) -> Extension:
        extension = estimate_full_step([c for c, _ in some], [s for _, s in some], whole)
        assert extension is not None
        return extension

    step_time_s = statistics.median(full)
    a_point = short_step_rounds(STEPS) * kinds
    points = [of(steps[at : at + a_point]) for at in range(0, len(steps) - a_point + 1, a_point)]
    truth = median_interval(full)
    assert truth.low is not None
    assert truth.high is not None
    truth_sigma_s = (truth.high - truth.low) / 2 / Z95
    smallest = statistics.median(s for c, s in steps if c == min(counts))
    in_full = (WARMUP + STEPS) * step_time_s
    in_short = WARMUP * smallest + short_step_rounds(STEPS) * sum(s for _, s in steps) / len(full)
    return {
        "error": of(steps).step_time_s / step_time_s - 1,
        "floor": statistics.median(full[::2]) / statistics.median(full[1::2]) - 1,
        "points": [point.step_time_s / step_time_s - 1 for point in points],
        "covered": [point.low_s <= step_time_s <= point.high_s for point in points],
        "expected": [_chance_to_hold(point, truth_sigma_s) for point in points],
        "linear": of(steps).linear,
        "rounds": len(full),
        "step_time_s": step_time_s,
        "seconds_in_full": in_full,
        "seconds_saved": in_full - in_short,
        "load": line["load"],
        "stolen": line.get("stolen", math.nan),
    }


def _chance_to_hold(point: Extension, truth_sigma_s: float) -> float:
    """Chance that a right 80 % interval holds a truth that is itself uncertain."""
    half_s = point.half_width * point.step_time_s
    sigma_s = math.hypot(half_s / Z80, truth_sigma_s)
    return 2 * statistics.NormalDist().cdf(half_s / sigma_s) - 1 if sigma_s else 1.0


HEADER = f"{'layout':58} ranks rounds  full s   error   floor   point  covered  saved stolen  load"


def table_line(visits: list[dict[str, Any]]) -> str:
    """One layout."""
    one = judged(visits)
    return (
        f"{visits[0]['layout']:58} {visits[0]['world_size']:5} {one['rounds']:6} "
        f"{one['step_time_s']:7.3f} {one['error']:+7.2%} "
        f"{one['floor']:+7.2%} {_size(one['points']):7.2%} {_share(one['covered']):8.0%} "
        f"{one['seconds_saved'] / one['seconds_in_full']:6.0%} {one['stolen']:6.1%} "
        f"{one['load']:5.1f}" + ("" if one["linear"] else "  on no line: runs in full")
    )


def summary(every: list[dict[str, Any]]) -> str:
    """Summary of the layouts whose short steps lie on a line; others would run in full."""
    used = [one for one in every if one["linear"]]
    if not used:
        return "nothing to sum up"
    errors, floors = ([abs(one[key]) for one in used] for key in ("error", "floor"))
    points = [error for one in used for error in one["points"]]
    covered = [held for one in used for held in one["covered"]]
    expected = [chance for one in used for chance in one["expected"]]
    saved = sum(one["seconds_saved"] for one in used)
    return (
        f"{len(used)} of {len(every)} layouts on a line: error median "
        f"{statistics.median(errors):.2%}, worst {max(errors):.2%}; full steps against themselves "
        f"median {statistics.median(floors):.2%}, worst {max(floors):.2%}; {len(points)} points of "
        f"{STEPS} steps: median error {_size(points):.2%}, covered {_share(covered):.0%} "
        f"(right intervals {statistics.fmean(expected):.0%}); saved "
        f"{saved:.0f} s of {sum(one['seconds_in_full'] for one in used):.0f} s; load "
        f"{statistics.median(one['load'] for one in every):.1f}"
    )


def _size(errors: list[float]) -> float:
    return statistics.median(map(abs, errors)) if errors else float("nan")


def _share(held: list[bool]) -> float:
    return sum(held) / len(held) if held else float("nan")


def _turns(layout: Layout) -> list[int]:
    """Micro-batches of each step: full and short ones, in a random order within each round."""
    kinds = (*short_step_sizes(layout), layout.gradient_accumulation_steps)
    return shuffled_rounds(kinds, MOST_ROUNDS, seed=0)


def _rank(point: Point, directory: str, rank: int, seconds: float) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what engines print would stand in the table
    os.environ.update(rank_environment(point, os.environ))
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    os.setsid()
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -15)
        # where Linux groups processes by session it shares cores among groups, by their niceness
        Path("/proc/self/autogroup").write_text("-15")
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(point.world_size),
        MASTER_ADDR="127.0.0.1",
    )  # fmt: skip
    import torch
    import torch.distributed as dist

    from scaling.cluster.node import RankId
    from scaling.layout.engines import engine_module
    from scaling.train.data import Feed
    from scaling.train.engines.trainer import build, make_blueprint
    from scaling.train.measure.timing import HostStopwatch
    from scaling.train.parallel.groups import Groups
    from scaling.train.parallel.rendezvous import rendezvous

    warnings.filterwarnings("ignore", category=FutureWarning)  # of torch to the engines, each step
    torch.set_num_threads(1)
    own = RankId(rank=rank, local_rank=rank, world_size=point.world_size, master="127.0.0.1")
    files, device = RankFiles(Path(directory)), torch.device("cpu")
    port = rendezvous(own, files, device, timeout_s=300.0)
    engine_module(point.layout.engine, "engine").join(port)
    groups = Groups(rank, point.layout, timeout_s=300.0)
    trainer = build(make_blueprint(point, groups, device), groups)
    turns = _turns(point.layout)
    kinds = sorted(set(turns))
    counts = [kinds[-1], *kinds, *turns]  # a full step and a round to warm up
    warmup = 1 + len(kinds)
    until = 0.0
    stopwatch = HostStopwatch()
    times: list[float] = []

    def is_enough() -> bool:
        done, rest = divmod(len(times) - warmup, len(kinds))
        if rest or done < FEWEST_ROUNDS:
            return False
        late = torch.tensor([int(time.monotonic() > until)])
        dist.broadcast(late, src=0)  # all ranks go on, or none
        return bool(late.item())

    feed = Feed(point, groups.place, counts, first=0, device=device)
    for step in range(len(counts)):
        if step == warmup:
            until = time.monotonic() + seconds
        batches = feed(step)
        dist.barrier()
        times.append(stopwatch.seconds_of(functools.partial(trainer.step, batches)))
        if is_enough():
            break
    Path(directory, f"times{rank}.json").write_text(json.dumps(times[warmup:]))
    dist.barrier()  # with gloo an early exit can abort other ranks
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
    parser.add_argument("--seconds", type=float, default=13.0, help="of counted steps, a layout")
    parser.add_argument("--visits", type=int, default=1, help="how often each layout is started")
    parser.add_argument(
        "--at-most", type=float, default=math.inf, help="seconds until no other layout begins"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
