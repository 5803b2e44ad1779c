"""`scaling recommend`: the best layouts of a model on given GPU counts."""

import contextlib
import dataclasses
import itertools
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from scaling.cli.layouts import (
    CLUSTER_HELP,
    MODEL_HELP,
    PROGRAM_HELP,
    SEQ_LENGTH,
    axis_values,
    model_of,
    pairs_of,
)
from scaling.cli.options import (
    REHEARSE,
    AsJson,
    CalibrationFile,
    check_choice,
    count,
    opt,
    percent,
    print_json,
    print_table,
    say_batch,
    warn,
)
from scaling.errors import InputError, did_you_mean, shortened
from scaling.layout.axes import DEFAULTS, SETTING_AXES, Precision
from scaling.layout.engines import programs
from scaling.layout.names import layout_name

if TYPE_CHECKING:
    from scaling.layout.layout import Layout
    from scaling.predict.advise.recommendation import Ranked

_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}


def recommend(
    model: Annotated[str, opt(MODEL_HELP)],
    cluster: Annotated[str, opt(CLUSTER_HELP)],
    gpus: Annotated[str, opt("GPU counts, e.g. 8,64,512.")],
    global_batch_size: Annotated[int | None, count("Sequences; default: 4 to 16 M tokens.")] = None,
    seq_length: Annotated[int, count("Tokens per sequence.")] = SEQ_LENGTH,
    precision: Annotated[str | None, opt("fp32, bf16, fp16 or fp8; default: bf16.")] = None,
    engine: Annotated[str | None, opt(f"Whose layouts, if not of --as: {PROGRAM_HELP}")] = None,
    setting: Annotated[
        list[str] | None, opt("For all: routing=learned.", metavar="AXIS=VALUE")
    ] = None,
    tokens: Annotated[str | None, opt("Of a run, as 15T: adds days and cost.")] = None,
    usd_per_gpu_hour: Annotated[float | None, opt("A price of your own.", min=0, max=1e6)] = None,
    calibration: CalibrationFile = None,
    rehearse: Annotated[bool, opt(REHEARSE)] = True,
    program: Annotated[
        str | None, opt("Layouts that this program can be told, and how it starts.", "--as")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rank the layouts of a model on given GPU counts: speed, memory margin and cost."""
    from scaling.check.rehearsed import rehearser
    from scaling.predict.advise import recommendation as search
    from scaling.predict.advise.candidates import Search, programs_for, why_none
    from scaling.predict.read.calibration import read_calibration
    from scaling.predict.read.clusters import site_clusters
    from scaling.trainers.render import start_of

    parameters = read_calibration(calibration) if calibration else None
    found, counts, clusters = model_of(model), _counts(gpus), site_clusters()
    whole_run = None if tokens is None else _token_count(tokens)
    if precision is not None:
        check_choice("--precision", precision, get_args(Precision))
    for option, named in (("--as", program), ("--engine", engine)):
        if named is not None:
            check_choice(option, named, programs())
    settings = axis_values(pairs_of(",".join(setting or [])))
    for name in settings.keys() - {*SETTING_AXES}:
        raise InputError(f"--setting {name}: {did_you_mean(name, SETTING_AXES)}")
    first = Search(
        model=found.name, shape=found.shape, cluster=cluster, clusters=clusters, gpus=counts[0],
        seq_length=seq_length, global_batch_size=global_batch_size,
        precision=cast("Precision | None", precision),
        engine=engine or program or str(DEFAULTS["engine"]), setting=settings,
    )  # fmt: skip
    if usd_per_gpu_hour is not None:
        priced = dataclasses.replace(first.hosts, usd_per_gpu_hour=usd_per_gpu_hour)
        first = dataclasses.replace(first, clusters={**clusters, cluster: priced})
    if engine is program is None and (reason := why_none(first)) and (able := programs_for(first)):
        program = able[0]
        first = dataclasses.replace(first, engine=program)
        warn(f"{reason}; {' and '.join(able)} can be told it: these are layouts of {program}")
    best: dict[int, list[Ranked]] = {}
    without: list[search.NoLayoutError] = []
    with rehearser(warn if rehearse else None) as fullest_bytes:
        for each in counts:
            try:
                asked = dataclasses.replace(first, gpus=each)
                best[each] = search.recommend(asked, parameters, rehearse=fullest_bytes)
            except search.NoLayoutError as error:
                without.append(error)
    if not best:
        raise without[0]
    for none in without:
        warn(str(none))
    if global_batch_size is None:
        layouts = [several[0].layout for several in best.values()]
        same = len({one.global_batch_size for one in layouts}) == 1
        for one in layouts[: 1 if same else None]:
            say_batch(one, "" if same else f"{one.world_size} GPUs: ")
    advised = _advised(best)
    records = []
    for layout, facts in itertools.chain(*best.values()):
        record = facts | {"advised": layout is advised[facts["gpus"]]}
        if whole_run is not None:
            record |= _run_of(facts, whole_run)
        if program is not None:
            record["start"] = dataclasses.asdict(start_of(first.point(layout), program))
        records.append(record)
    if as_json:
        print_json(records)
        return
    _show(records)
    if parameters is None:
        typer.echo("predicted from data-sheet numbers; calibrate with your own rows")
    for record in records if program is not None else ():
        if record["advised"]:
            start = record["start"]
            for sentence in (*start["refused"], *start["notes"]):
                warn(sentence)
            if start["files"]:
                warn(f"{', '.join(start['files'])}: `scaling command` writes this")
            typer.echo(f"{record['gpus']} GPUs: {start['shell']}")


def _token_count(text: str) -> float:
    """The tokens that a text such as `15T`, `140 G` or `1e12` means."""
    found = re.fullmatch(r"([\d.]+(?:e\+?\d+)?) ?([kmgbt]?)", text.strip().lower(), re.ASCII)
    with contextlib.suppress(ValueError):
        if found and 0 < (value := float(found[1]) * _SCALES[found[2]]) < math.inf:
            return value
    raise InputError(f"--tokens {shortened(text)}: give a number such as 15T, 140G or 1e12")


def _run_of(facts: Mapping[str, Any], tokens: float) -> dict[str, float | None]:
    """Days, GPU-hours and price of a run of so many tokens."""
    hours, usd = tokens / facts["tokens_per_s"] / 3600, facts["usd_per_million_tokens"]
    cost = None if usd is None else usd * tokens / 1e6
    return {"tokens": tokens, "days": hours / 24, "gpu_hours": hours * facts["gpus"], "usd": cost}


def _counts(text: str) -> list[int]:
    shown = shortened(text)
    if not all(re.fullmatch(r" *-?\d{1,18} *", part, re.ASCII) for part in text.split(",")):
        raise InputError(f"--gpus {shown}: give GPU counts with commas, e.g. 8,64,512")
    counts = [int(part) for part in text.split(",")]
    if min(counts) < 1:
        raise InputError(f"--gpus {shown}: a GPU count is at least 1")
    return sorted(set(counts))


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _fits(one: dict[str, Any]) -> str:
    """The chance that a layout fits, and where it comes from if it is near the limit."""
    if one["memory_from"] == "rehearsed":
        return f"{percent(one['fits_chance'], 0)} (rehearsed)"
    return percent(one["fits_chance"], 0) + (" (may not)" if one["risky"] else "")


def _advised(best: Mapping[int, list["Ranked"]]) -> dict[int, "Layout"]:
    """The layout to use at each size, as reports decide it; the first if none likely fits."""
    import numpy as np

    from scaling.analyse.decision import LEAST_FIT, advise
    from scaling.analyse.posterior import Cells, Runs, posterior
    from scaling.predict.read.calibration import PARTS

    layouts, facts = zip(*itertools.chain(*best.values()), strict=True)
    size = np.unique([one["gpus"] for one in facts], return_inverse=True)[1]
    layout = np.unique([one["label"] for one in facts], return_inverse=True)[1]
    sigmas = np.array([[one[f"{part}_sigma"] for part in PARTS] for one in facts])
    rates = np.log([one["tokens_per_s"] for one in facts])
    none = np.empty(0, dtype=int)
    nothing = Runs(np.empty(0), np.empty(0), none, none)
    drawn = posterior(nothing, Cells(layout, size, rates, sigmas)).rates
    fits = np.array([one["fits_chance"] >= LEAST_FIT for one in facts])
    chosen = {
        facts[cell]["gpus"]: layouts[cell] for cell in advise(drawn, layout, size, fits).values()
    }
    return {count: chosen.get(count, several[0].layout) for count, several in best.items()}


def _show(records: list[dict[str, Any]]) -> None:
    costs = {"usd_per_million_tokens": "USD / 1M tokens", "joules_per_token": "J / token by TDP"}
    if "days" in records[0]:
        costs = {"days": "days", "gpu_hours": "GPU-hours", "usd": "USD"}
    heads = (
        "GPUs", "", "layout", "tokens/s", "step (80 % interval)", "beats the first", "MFU",
        "memory left", "fits", *costs.values(),
    )  # fmt: skip
    body = [
        (
            one["gpus"],
            f"{one['rank']}{' use' * one['advised']}",
            layout_name(one),
            f"{one['tokens_per_s']:,.0f}",
            f"{one['step_time_s']:.3g} s ({one['low']:.3g} to {one['high']:.3g})",
            "" if one["rank"] == 1 else percent(one["beats_first"], 0),
            percent(one["mfu"]),
            percent(one["memory_margin"], 0),
            _fits(one),
            *("–" if (cost := one[name]) is None else _short(cost) for name in costs),
        )
        for one in records
    ]
    print_table(heads, body)
