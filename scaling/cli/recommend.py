"""`scaling recommend`: the best layouts of a model on given GPU counts."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from scaling.cli.layouts import (
    CLUSTER_HELP,
    MODEL_HELP,
    PROGRAMS,
    SEQ_LENGTH,
    axis_values,
    model_of,
    pairs_of,
    point_of_layout,
)
from scaling.cli.options import (
    REHEARSE,
    AsJson,
    CalibrationFile,
    check_choice,
    count,
    percent,
    print_json,
    print_table,
    say_batch,
    warn,
)
from scaling.errors import InputError, shortened
from scaling.layout.axes import DEFAULTS, Precision
from scaling.layout.engines import ENGINES
from scaling.layout.names import layout_name

if TYPE_CHECKING:
    from scaling.layout.layout import Layout
    from scaling.predict.advise.recommend import Recommendation


def recommend(
    model: Annotated[str, typer.Option(help=MODEL_HELP)],
    cluster: Annotated[str, typer.Option(help=CLUSTER_HELP)],
    gpus: Annotated[str, typer.Option(help="GPU counts, e.g. 8,64,512.")],
    global_batch_size: Annotated[
        int | None, count("Sequences per step; default: 4 to 16 M tokens.")
    ] = None,
    seq_length: Annotated[int, count("Tokens per sequence.")] = SEQ_LENGTH,
    precision: Annotated[
        str | None,
        typer.Option(help="fp32, bf16, fp16 or fp8; default: bf16, or fp16 on GPUs without it."),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(help=f"The engine whose layouts to search: {' or '.join(ENGINES)}."),
    ] = DEFAULTS["engine"],
    setting: Annotated[
        list[str] | None,
        typer.Option(metavar="AXIS=VALUE", help="What the layouts share: routing=learned."),
    ] = None,
    calibration: CalibrationFile = None,
    rehearse: Annotated[bool, typer.Option(help=REHEARSE)] = True,
    program: Annotated[
        str | None,
        typer.Option("--as", help=f"Print how each size's best starts: {', '.join(PROGRAMS)}."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rank the layouts of a model on given GPU counts: speed, memory margin and cost."""
    from scaling.check.rehearsed import rehearser
    from scaling.predict.advise import recommend as search
    from scaling.predict.advise.candidates import Search
    from scaling.predict.read.calibration import read_calibration
    from scaling.predict.read.clusters import site_clusters
    from scaling.trainers.render import start_of

    parameters = read_calibration(calibration) if calibration else None
    found, counts = model_of(model), _counts(gpus)
    if precision is not None:
        check_choice("--precision", precision, get_args(Precision))
    shared: dict[str, Any] = {
        "model": found.name, "shape": found.shape, "cluster": cluster,
        "clusters": site_clusters(), "seq_length": seq_length,
        "global_batch_size": global_batch_size, "precision": cast("Precision | None", precision),
        "engine": check_choice("--engine", engine, ENGINES),
        "setting": axis_values(pairs_of(",".join(setting or []))),
    }  # fmt: skip
    best: dict[int, list[Recommendation]] = {}
    without: list[search.NoLayoutError] = []
    with rehearser(warn if rehearse else None) as fullest_bytes:

        def counted_bytes(layouts: "Sequence[Layout]") -> Sequence[float | None]:
            return fullest_bytes(
                [point_of_layout(found.name, found.shape, one, cluster) for one in layouts]
            )

        for each in counts:
            try:
                asked = Search(gpus=each, **shared)
                best[each] = search.recommend(asked, parameters, rehearse=counted_bytes)
            except search.NoLayoutError as error:
                without.append(error)
    if not best:
        raise without[0]
    for none in without:
        warn(str(none))
    for first, *_ in best.values() if global_batch_size is None else ():
        say_batch(first.layout, f"{first.gpus} GPUs: ")
    advised = _advised(best)
    records = [
        search.record_of(one) | {"advised": one is advised[one.gpus]}
        for several in best.values()
        for one in several
    ]
    if as_json:
        print_json(records)
        return
    _show(records)
    if parameters is None:
        typer.echo("predicted from data-sheet numbers; calibrate with your own rows")
    for size, use in advised.items() if program is not None else ():
        point = point_of_layout(found.name, found.shape, use.layout, cluster)
        start = start_of(point, check_choice("--as", str(program), PROGRAMS))
        for reason in start.refused:
            warn(reason)
        typer.echo(f"{size} GPUs: {start.shell}")


def _counts(text: str) -> list[int]:
    shown = shortened(text)
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--gpus {shown}: give GPU counts with commas, e.g. 8,64,512") from None
    if min(counts) < 1:
        raise InputError(f"--gpus {shown}: a GPU count is at least 1")
    return sorted(set(counts))


def _fits(one: dict[str, Any]) -> str:
    """The chance that a layout fits, and where it comes from if it is near the limit."""
    if one["memory_from"] == "rehearsed":
        return f"{percent(one['fits_chance'], 0)} (rehearsed)"
    return percent(one["fits_chance"], 0) + (" (may not)" if one["risky"] else "")


def _advised(best: Mapping[int, list["Recommendation"]]) -> dict[int, "Recommendation"]:
    """The layout to use at each size, as reports decide it; the first if none likely fits."""
    import numpy as np

    from scaling.analyse.decision import LEAST_FIT, advise
    from scaling.analyse.posterior import Cells, Runs, posterior

    found = [one for several in best.values() for one in several]
    size = np.unique([one.gpus for one in found], return_inverse=True)[1]
    layout = np.unique([one.layout.label for one in found], return_inverse=True)[1]
    sigmas = [(one.common_sigma, one.layout_sigma, one.size_sigma, one.rest_sigma) for one in found]
    rates = np.log([one.tokens_per_s for one in found])
    none = np.empty(0, dtype=int)
    nothing = Runs(np.empty(0), np.empty(0), none, none)
    drawn = posterior(nothing, Cells(layout, size, rates, np.array(sigmas))).rates
    fits = np.array([one.fits_chance >= LEAST_FIT for one in found])
    chosen = {found[cell].gpus: found[cell] for cell in advise(drawn, layout, size, fits).values()}
    return {count: chosen.get(count, several[0]) for count, several in best.items()}


def _show(records: list[dict[str, Any]]) -> None:
    heads = (
        "GPUs", "", "layout", "tokens/s", "step (80 % interval)", "beats the first", "MFU",
        "memory left", "fits", "USD / 1M tokens", "J / token by TDP",
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
            "–" if (usd := one["usd_per_million_tokens"]) is None else f"{usd:.3g}",
            "–" if (joules := one["joules_per_token"]) is None else f"{joules:.2g}",
        )
        for one in records
    ]
    print_table(heads, body)
