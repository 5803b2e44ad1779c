"""Verbs that predict, calibrate and recommend. Heavy imports stay inside the functions."""

import dataclasses
import functools
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from scaling.cli.command import PROGRAMS, point_of_layout
from scaling.cli.model import ModelOption, model_of
from scaling.cli.options import (
    AsJson,
    check_choice,
    check_output,
    percent,
    print_json,
    print_table,
)
from scaling.errors import InputError, counted, grouped_reasons, printable, shortened
from scaling.layout.axes import DEFAULTS, Precision
from scaling.layout.engines import ENGINES
from scaling.layout.names import layout_name

if TYPE_CHECKING:
    from scaling.arrays import Flags
    from scaling.cluster.hardware import Cluster
    from scaling.importing.reader import Table
    from scaling.layout.layout import Layout
    from scaling.layout.shapes import ModelShape
    from scaling.predict.advise.recommend import Recommendation

CalibrationFile = Annotated[
    Path | None,
    typer.Option("--calibration", "-c", help="calibration.json; without it data-sheet numbers."),
]
REHEARSE = "Count the memory of shown layouts near the GPU's limit by rehearsal, 4 to 15 s each."
Rows = Annotated[
    Path,
    typer.Argument(metavar="ROWS", help="Measured rows: CSV, JSON, Parquet, or a rows/ folder."),
]


def predict(
    points: Annotated[
        Path, typer.Argument(metavar="POINTS", help="CSV, JSON or Parquet, one layout per row.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The Parquet file to write.")],
    calibration: CalibrationFile = None,
    rehearse: Annotated[
        bool,
        typer.Option(
            "--rehearse", help=f"{REHEARSE} Shown is the best of each size; POINTS is a study's."
        ),
    ] = False,
) -> None:
    """Predict memory and step time of every layout in a table."""
    from scaling.check.rehearsed import rehearser
    from scaling.importing.reader import read_rows
    from scaling.launch.point_files import read_point
    from scaling.predict.advise.rehearse import best_of_sizes, predict_rehearsed
    from scaling.predict.cost.prediction_tables import prediction_table
    from scaling.predict.read.calibration import read_calibration
    from scaling.predict.read.points import points_of
    from scaling.record.files import write_table
    from scaling.study.paths import StudyPaths

    check_output(out, points, calibration)
    if out.suffix == ".csv":  # which would be no CSV
        raise InputError(f"{out}: a prediction is Parquet; name it {out.with_suffix('.parquet')}")
    parameters = read_calibration(calibration) if calibration else None
    table = read_rows(points)
    print_remark(table)
    models, clusters = catalogues()
    checked = points_of(table, models=models, clusters=clusters)
    files, ids = StudyPaths(points.parent), checked.point_id
    with rehearser(print_progress if rehearse else None) as fullest_bytes:

        def of_rows(rows: Sequence[int]) -> Sequence[int | None]:
            if ids is None or not files.points.is_dir():
                return [None] * len(rows)
            return fullest_bytes([read_point(files.point(ids[row])) for row in rows])

        prediction = predict_rehearsed(
            checked, parameters, lambda found: best_of_sizes(checked, found), of_rows
        )
    until = parameters.rows_until if parameters else None
    write_table(out, prediction_table(checked, prediction, until))
    fitting = int((prediction.predicted & prediction.fits).sum())
    left_out = int((~prediction.predicted).sum())
    asked = counted(len(checked), "point")
    typer.echo(f"{asked}: {fitting} fit, {left_out} cannot be predicted -> {out}")
    for count, reason in grouped_reasons(checked.note[~prediction.predicted].tolist()):
        typer.echo(f"  not predicted {count}: {printable(reason)}")
    print_assumptions(checked.assumptions)


def calibrate(
    rows: Rows,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The calibration.json to write.")],
    where: Annotated[
        str | None, typer.Option(help="SQL condition: rows to use; row_index is their number.")
    ] = None,
    points: Annotated[
        Path | None,
        typer.Option(
            help="Only rows of these points, a study's points.parquet, of their commonest software."
        ),
    ] = None,
    probes: Annotated[
        Path | None, typer.Option(help="Microbenchmarks of the cluster: CSV, JSON or Parquet.")
    ] = None,
) -> None:
    """Fit the model's parameters, with intervals, to measured rows."""
    import numpy as np

    from scaling.importing.reader import read_rows, read_table
    from scaling.predict.fit.calibrate import calibrate as fit
    from scaling.predict.fit.calibrate import of_commonest_fingerprints, one_fingerprint_per_stack
    from scaling.predict.fit.probes import probed_parameters
    from scaling.predict.read.calibration import Calibration, write_calibration
    from scaling.predict.read.observed import impossible_rows, impossible_sentence, observed_of
    from scaling.predict.read.points import points_of
    from scaling.record.conditions import rows_where
    from scaling.record.row_checks import PROBE_COLUMNS

    check_output(out, rows, points, probes)
    table = read_rows(rows)
    print_remark(table)
    wanted = rows_where(table.rows, where, str(rows), "--where")
    if where is not None and not wanted.any():
        raise InputError(f"{rows}: --where {shortened(where, 200)!r} leaves no row; widen it")
    if points is not None:
        wanted &= _of_points(table, points)
    table = table.filter(wanted)
    models, clusters = catalogues()
    measured = points_of(table, models=models, clusters=clusters)
    impossible = impossible_rows(table, measured, observed_of(table))
    kept = ~np.isin(np.arange(len(measured)), list(impossible))
    if points is None:
        one_fingerprint_per_stack(table, measured, observed_of(table))
    else:  # of a study, which nobody asks to choose
        commonest = of_commonest_fingerprints(table, measured, observed_of(table))
        if not commonest.all():
            typer.echo(f"left out {(~commonest).sum()} rows of other software", err=True)
        kept &= commonest
    if not kept.all():
        table = table.filter(kept)
        measured = points_of(table, models=models, clusters=clusters)
    source = f"{rows.name}" + (f" where {where}" if where else "")
    probed = None
    if probes is not None:
        probed = probed_parameters(read_table(probes, columns=PROBE_COLUMNS), clusters)
    try:
        calibration = fit(measured, observed_of(table), source=source, probes=probed)
    except Exception as error:
        if points is None:
            raise
        traceback.print_exc()  # a study still gets its report, from data sheets
        failure = f"{type(error).__name__}: {error}"
        calibration = Calibration(source=source, stacks={}, failure=failure)
    starts = table.rows["started_at"].to_pylist() if "started_at" in table.rows.schema.names else []
    until = max(filter(None, map(str, filter(None, starts))), default=None)
    write_calibration(out, dataclasses.replace(calibration, rows_until=until))
    for key, stack in calibration.stacks.items():
        identified = [name for name, fitted in stack.parameters.items() if fitted.identified]
        typer.echo(
            f"{printable(key)}: {stack.rows_timed} timed rows, "
            f"{stack.rows_out_of_memory} out of memory; "
            f"{len(identified)} of {len(stack.parameters)} parameters identified: "
            f"{', '.join(identified) or 'none, defaults kept'}"
        )
    if calibration.failure:
        typer.echo(f"{rows}: the fit failed ({calibration.failure}); the calibration is empty")
    elif not calibration.stacks:
        typer.echo(f"{rows}: no row of a GPU ran or ran out of memory; the calibration is empty")
    if impossible:
        typer.echo(impossible_sentence(impossible), err=True)
    typer.echo(f"-> {out}")
    print_assumptions(measured.assumptions)


def _of_points(table: "Table", points: Path) -> "Flags":
    """Which rows are of these points or were added to them by a round, bool (n,).

    Raises:
        InputError: one of the tables lacks the column point_id.
    """
    import numpy as np

    from scaling.importing.reader import read_table
    from scaling.study.paths import StudyPaths

    files = [points, *StudyPaths(points.parent).rounds()]
    of_rows, *of_points = (_ids(each) for each in (table, *map(read_table, files)))
    wanted = set().union(*of_points)
    return np.array([name in wanted for name in of_rows], dtype=bool)


def _ids(table: "Table") -> list[str]:
    if "point_id" not in table.rows.column_names:
        raise InputError(f"{table.source}: has no column point_id, by which --points chooses rows")
    ids: list[str] = table.rows["point_id"].to_pylist()
    return ids


def print_remark(table: "Table") -> None:
    """Name on stderr the columns of a file that are ignored."""
    if table.remark is not None:
        typer.echo(printable(table.remark), err=True)


def recommend(
    model: ModelOption,
    cluster: Annotated[str, typer.Option(help="A cluster of config/clusters.yaml, or a GPU.")],
    gpus: Annotated[str, typer.Option(help="GPU counts, e.g. 8,64,512.")],
    global_batch_size: Annotated[
        int | None,
        typer.Option(min=1, max=10_000_000, help="Sequences per step; default: 4 to 16 M tokens."),
    ] = None,
    seq_length: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="Tokens per sequence.")
    ] = 4096,
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
    from scaling.predict.advise.recommend import NoLayoutError, record_of
    from scaling.predict.advise.recommend import recommend as search
    from scaling.predict.read.calibration import read_calibration
    from scaling.trainers.render import start_of

    parameters = read_calibration(calibration) if calibration else None
    found, (_, clusters), counts = model_of(model), catalogues(), _counts(gpus)
    if precision is not None:
        check_choice("--precision", precision, get_args(Precision))
    asked = functools.partial(
        search,
        model=found.name,
        shape=found.shape,
        seq_length=seq_length,
        global_batch_size=global_batch_size,
        engine=check_choice("--engine", engine, ENGINES),
        cluster=cluster,
        clusters=clusters,
        precision=cast("Precision | None", precision),
        calibration=parameters,
        setting=dict(choice.partition("=")[::2] for choice in setting or ()),
    )
    best: dict[int, list[Recommendation]] = {}
    without: list[NoLayoutError] = []
    with rehearser(print_progress if rehearse else None) as fullest_bytes:

        def counted_bytes(layouts: "Sequence[Layout]") -> Sequence[int | None]:
            return fullest_bytes(
                [point_of_layout(found.name, found.shape, one, cluster) for one in layouts]
            )

        for count in counts:
            try:
                best[count] = asked(gpus=count, rehearse=counted_bytes)
            except NoLayoutError as error:
                without.append(error)
    if not best:
        raise without[0]
    for none in without:
        typer.echo(printable(str(none)), err=True)
    if global_batch_size is None:
        for count, (first, *_) in best.items():
            batch = first.layout.global_batch_size
            tokens = f"{batch * seq_length / 1e6:.3g} M tokens"
            typer.echo(f"assumed: {count} GPUs: {batch:,} sequences, {tokens} a step", err=True)
    advised = _advised(best)
    records = [
        record_of(one) | {"advised": one is advised[count]}
        for count, several in best.items()
        for one in several
    ]
    if as_json:
        print_json(records)
    else:
        _show_recommendations(records, calibrated=parameters is not None)
    for count, use in advised.items() if program is not None and not as_json else ():
        point = point_of_layout(found.name, found.shape, use.layout, cluster)
        start = start_of(point, check_choice("--as", str(program), PROGRAMS))
        for reason in start.refused:
            typer.echo(printable(reason), err=True)
        typer.echo(f"{count} GPUs: {start.shell}")


def catalogues() -> tuple["dict[str, ModelShape] | None", "dict[str, Cluster]"]:
    """The site's models (None without a models.yaml) and its clusters."""
    from scaling.predict.read.clusters import config_file, site_clusters
    from scaling.study.load import load_models

    models = config_file("models.yaml")
    return load_models(models) if models else None, site_clusters()


def _counts(text: str) -> list[int]:
    shown = shortened(text)
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--gpus {shown}: give GPU counts with commas, e.g. 8,64,512") from None
    if min(counts) < 1:
        raise InputError(f"--gpus {shown}: a GPU count is at least 1")
    return sorted(set(counts))


def print_assumptions(assumptions: Iterable[str]) -> None:
    """Say on stderr what was assumed, each sentence once."""
    for sentence in dict.fromkeys(assumptions):  # two columns may share one
        typer.echo(f"assumed: {printable(sentence)}", err=True)


def print_progress(sentence: str) -> None:
    """Print a line of progress on stderr."""
    typer.echo(printable(sentence), err=True)


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


def _show_recommendations(records: list[dict[str, Any]], *, calibrated: bool) -> None:
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
    if not calibrated:
        typer.echo("predicted from data-sheet numbers; calibrate with your own rows")
