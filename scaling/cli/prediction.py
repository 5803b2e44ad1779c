"""Verbs that predict, calibrate and validate. Heavy imports stay inside the functions."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scaling.cli.options import (
    REHEARSE,
    AsJson,
    CalibrationFile,
    arg,
    check_output,
    opt,
    percent,
    print_assumptions,
    print_json,
    print_table,
    warn,
)
from scaling.errors import InputError, counted, grouped_reasons, printable, shortened

if TYPE_CHECKING:
    from scaling.arrays import Flags
    from scaling.importing.reader import Table

Rows = Annotated[Path, arg("ROWS", "Measured rows: CSV, JSON, Parquet, or a rows/ folder.")]
Where = Annotated[str | None, opt("SQL: rows to use; row_index is their number.")]


def predict(
    points: Annotated[Path, arg("POINTS", "CSV, JSON or Parquet, one layout per row.")],
    out: Annotated[Path, arg("OUT", "The Parquet file to write.")],
    calibration: CalibrationFile = None,
    rehearse: Annotated[
        bool, opt(f"{REHEARSE} Shown is the best of each size; POINTS is a study's.", "--rehearse")
    ] = False,
) -> None:
    """Predict memory and step time of every layout in a table."""
    from scaling.check.rehearsed import rehearser
    from scaling.importing.reader import read_rows
    from scaling.launch.point_files import read_point
    from scaling.predict.advise.rehearse import best_of_sizes, predict_rehearsed
    from scaling.predict.cost.prediction_tables import prediction_table
    from scaling.predict.read.calibration import read_calibration
    from scaling.predict.read.clusters import site_models
    from scaling.predict.read.points import points_of
    from scaling.record.files import write_table
    from scaling.study.paths import StudyPaths

    check_output(out, points, calibration)
    if out.suffix == ".csv":  # which would be no CSV
        raise InputError(f"{out}: a prediction is Parquet; name it {out.with_suffix('.parquet')}")
    parameters = read_calibration(calibration) if calibration else None
    checked = points_of(_noted(read_rows(points)), models=site_models())
    files, ids = StudyPaths(points.parent), checked.point_id
    with rehearser(warn if rehearse else None) as fullest_bytes:

        def of_rows(rows: Sequence[int]) -> Sequence[float | None]:
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
    out: Annotated[Path, arg("OUT", "The calibration.json to write.")],
    where: Where = None,
    points: Annotated[Path | None, opt("Only rows of a study's points.parquet.")] = None,
    probes: Annotated[Path | None, opt("Rates that the cluster's probes reached.")] = None,
) -> None:
    """Fit the model's parameters, with intervals, to measured rows."""
    from scaling.importing.reader import read_rows, read_table
    from scaling.predict.fit.calibrate import calibrate as fit
    from scaling.predict.fit.calibrate import calibrate_study, of_commonest_fingerprints
    from scaling.predict.fit.probes import probed_parameters
    from scaling.predict.read.calibration import write_calibration
    from scaling.predict.read.clusters import site_clusters, site_models
    from scaling.predict.read.observed import impossible_rows, observed_of
    from scaling.predict.read.points import points_of
    from scaling.record.conditions import rows_where
    from scaling.record.row_checks import PROBE_COLUMNS

    check_output(out, rows, points, probes)
    table = _noted(read_rows(rows))
    wanted = rows_where(table.rows, where, str(rows), "--where")
    if where is not None and not wanted.any():
        raise InputError(f"{rows}: --where {shortened(where, 200)!r} leaves no row; widen it")
    if points is not None:
        wanted &= _of_points(table, points)
    table = table.filter(wanted)
    measured, observed = points_of(table, models=site_models()), observed_of(table)
    impossible, why_impossible = impossible_rows(table, measured, observed)
    observed = observed.only(~impossible)
    source = f"{rows.name}" + (f" where {where}" if where else "")
    probed = None
    if probes is not None:
        probed = probed_parameters(read_table(probes, columns=PROBE_COLUMNS), site_clusters())
    if points is None:
        _, several = of_commonest_fingerprints(table, measured, observed)
        if several is not None:
            raise InputError(several)
        calibration = fit(measured, observed, source=source, probes=probed)
    else:
        calibration, others = calibrate_study(
            table, measured, observed, source=source, probes=probed
        )
        if others:
            warn(f"left out {others} rows of other software")
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
    if why_impossible:
        warn(why_impossible)
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

    ids: list[list[str]] = []
    for each in (table, *map(read_table, [points, *StudyPaths(points.parent).rounds()])):
        if "point_id" not in each.rows.column_names:
            raise InputError(
                f"{each.source}: has no column point_id, by which --points chooses rows"
            )
        ids.append(each.rows["point_id"].to_pylist())
    wanted = set().union(*ids[1:])
    return np.array([name in wanted for name in ids[0]], dtype=bool)


def _noted(table: "Table") -> "Table":
    """The table, after stderr has named the columns that are ignored."""
    if table.remark is not None:
        warn(table.remark)
    return table


def validate(
    rows: Rows,
    calibrate_where: Annotated[str | None, opt("SQL: rows to calibrate on; else none.")] = None,
    test_where: Annotated[str | None, opt("SQL: rows to test on; else all others.")] = None,
    as_json: AsJson = False,
) -> None:
    """Calibrate on some of the rows, and report the prediction errors on the others."""
    from scaling.importing.reader import read_rows
    from scaling.predict.fit.validation import MEMORY_RATES, trial
    from scaling.predict.read.clusters import site_clusters, site_models

    found = trial(
        _noted(read_rows(rows)),
        calibrate_where=calibrate_where,
        test_where=test_where,
        models=site_models(),
        clusters=site_clusters(),
    )
    if as_json:
        print_json(found.to_dict())
        return
    heads = (
        "software", "model", "cluster", "GPUs", "rows", "MAPE", "bias", "regret", "covered",
        "fit/OOM accuracy", "false fits", "false OOM",
    )  # fmt: skip
    overall: dict[str, str | int] = {"framework": "all"}
    body = [
        (
            *(key.get(name, "") for name in ("framework", "model", "cluster", "world_size")),
            f"{scores.step_time['rows']:.0f}",
            *(percent(scores.step_time[name]) for name in ("mape", "bias")),
            percent(scores.regret["mean"]),
            percent(scores.coverage_80, 0),
            *(percent(scores.memory[name]) for name in MEMORY_RATES),
        )
        for key, scores in [*found.groups, (overall, found.overall)]
    ]
    print_table(heads, body)
    typer.echo(f"calibrated on {found.calibrated_rows} rows, tested on {found.tested_rows}")
    for note in found.notes:
        typer.echo(f"note: {printable(note)}")
    print_assumptions(found.assumptions)
