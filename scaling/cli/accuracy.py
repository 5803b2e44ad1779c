"""`scaling validate`: the accuracy of predictions. Heavy imports stay inside the functions."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scaling.cli.options import AsJson, percent, print_json, print_table
from scaling.cli.prediction import catalogues, print_assumptions
from scaling.errors import InputError, printable

if TYPE_CHECKING:
    from scaling.predict.fit.validation import Validation


def validate(
    rows: Annotated[
        Path | None,
        typer.Argument(
            metavar="[ROWS]", help="Measured rows: CSV, JSON, Parquet, or a rows/ folder."
        ),
    ] = None,
    calibrate_where: Annotated[
        str | None, typer.Option(help="SQL condition: rows to calibrate on; without it none.")
    ] = None,
    test_where: Annotated[
        str | None, typer.Option(help="SQL condition: rows to test on; without it all others.")
    ] = None,
    published: Annotated[
        bool,
        typer.Option(
            "--published",
            help="Print the accuracy table of the shipped published rows, or of tables in ROWS.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Calibrate on some of the rows, and report the prediction errors on the others."""
    if published:
        if calibrate_where is not None or test_where is not None:
            raise InputError("--published has its own conditions: leave out --calibrate-where")
        _published(rows, as_json=as_json)
        return
    if rows is None:
        raise InputError("ROWS is missing: give a table, or --published for the shipped rows")
    from scaling.foreign.reading import read_rows
    from scaling.predict.fit.trial import trial

    models, clusters = catalogues()
    validation = trial(
        read_rows(rows),
        str(rows),
        calibrate_where=calibrate_where,
        test_where=test_where,
        models=models,
        clusters=clusters,
    )
    if as_json:
        print_json(validation.to_dict())
    else:
        _show(validation)


def _published(rows: Path | None, *, as_json: bool) -> None:
    from scaling.predict.fit import accuracy
    from scaling.predict.fit.baselines import TREES_MISSING, trees_available

    models, clusters = catalogues()
    lines = []
    for task, table in accuracy.shipped_tasks() if rows is None else accuracy.tasks_of(rows):
        if sys.stderr.isatty():
            typer.echo(task.name, err=True)
        lines.append(accuracy.accuracy_of(task, table, models=models, clusters=clusters))
    if as_json:
        print_json([line.to_dict() for line in lines])
    else:
        for heads, *body in (accuracy.table_of(lines), accuracy.baseline_table_of(lines)):
            print_table(heads, body)
        for line in lines:
            if line.set_aside:
                typer.echo(
                    f"{printable(line.task.name)}: {line.set_aside} rows cannot be predicted"
                )
    if not trees_available():
        typer.echo(TREES_MISSING, err=True)


def _show(trial: "Validation") -> None:
    names = ("rows", "MAPE", "median", "max", "RMS", "bias", "rank", "regret", "max", "covered")
    heads = (
        "software",
        "model",
        "cluster",
        "GPUs",
        *names,
        "fit/OOM accuracy",
        "false fits",
        "false OOM",
    )
    whole: dict[str, str | int] = {
        "framework": "all",
        "model": "",
        "cluster": "",
        "world_size": "",
    }
    body = []
    for key, scores in [*trial.groups, (whole, trial.overall)]:
        s, m = scores.step_time, scores.memory
        correlation = s["rank_correlation"]
        body.append(
            [
                *(key[name] for name in whole),
                f"{s['rows']:.0f}",
                *(percent(s[name]) for name in ("mape", "median_ape", "max_ape", "rms", "bias")),
                "–" if correlation is None else f"{correlation:.2f}",
                percent(scores.regret["mean"]),
                percent(scores.regret["max"]),
                percent(scores.coverage_80, 0),
                *(percent(m[n]) for n in ("balanced_accuracy", "false_fit_rate", "false_oom_rate")),
            ]
        )
    print_table(heads, body)
    m = trial.overall.memory
    typer.echo(
        f"ran: {m['ran_fits']} predicted to fit, {m['ran_called_oom']} out of memory; "
        f"out of memory: {m['oom_called_oom']} predicted so, {m['oom_called_fit']} to fit"
    )
    typer.echo(f"calibrated on {trial.calibrated_rows} rows, tested on {trial.tested_rows}")
    for note in trial.notes:
        typer.echo(f"note: {printable(note)}")
    print_assumptions(trial.assumptions)
